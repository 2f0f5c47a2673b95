from importlib.metadata import distributions

from sembench.__about__ import __version__

__all__ = ["__version__"]

if any("semblend_core" in (found.read_text("top_level.txt") or "") for found in distributions(name="semblend")):
    # Said here too: where it was installed last, the module semblend_core is its own.
    raise ImportError(
        "the public package `semblend` is installed beside semblend-core, and both ship a module `semblend_core`. "
        "Run `pip uninstall semblend`, then `pip install --force-reinstall --no-deps semblend-core`"
    )
