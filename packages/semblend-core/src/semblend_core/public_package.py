"""The public package ``semblend`` ships a module ``semblend_core`` too: beside it neither is whole."""

from __future__ import annotations

from importlib import metadata

PUBLIC = "semblend"
REMEDY = (
    "Run `pip uninstall semblend`, then `pip install --force-reinstall --no-deps semblend-core`: the first removes "
    "files of both. docs/migration.md says what its names became"
)


def refuse_public_package() -> None:
    """ImportError where it is installed: whichever came last has overwritten files of the other."""
    try:
        public = metadata.distribution(PUBLIC)
    except metadata.PackageNotFoundError:
        return
    modules = (public.read_text("top_level.txt") or "").split()
    if "semblend_core" in modules or any(file.parts[0] == "semblend_core" for file in public.files or ()):
        raise ImportError(
            f"the public package `{PUBLIC}` {public.version} is installed beside semblend-core, and both ship a module "
            f"`semblend_core`. {REMEDY}"
        )
