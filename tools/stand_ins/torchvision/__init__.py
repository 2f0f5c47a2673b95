"""torchvision would bring a CUDA build of torch with it; engines and transformers only look whether it is there."""

from never_called import any_name_of

from . import transforms

__version__ = "0.28.0"
__all__ = ["transforms"]
__getattr__ = any_name_of("torchvision")
