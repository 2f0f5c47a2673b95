"""Whether the extra ``embedded`` is installed. Asked before any module is imported that needs it."""

from __future__ import annotations

from sembench.schema import InputError
from semblend_core import MissingExtraError, require_extra

_INSTALL = (
    'this command runs a model and needs torch: pip install "sembench[embedded]"\n'
    "Without a GPU, pin torch to a build for the CPU in the same command, which is far smaller:\n"
    '  pip install "sembench[embedded]" "torch==2.13.0"'
)
_NEEDED = ("torch", "transformers", "tokenizers", "gguf", "accelerate")


def require_embedded_extra() -> None:
    """Say what to install, before anything else is done."""
    for module in _NEEDED:
        try:
            require_extra(module, distribution="sembench", extra="embedded")
        except MissingExtraError as missing:
            raise InputError(f"{missing.name} is not installed: {_INSTALL}") from None
