from never_called import any_name_of

from ..modes import InterpolationMode
from . import functional

__all__ = ["InterpolationMode", "functional"]
__getattr__ = any_name_of("torchvision.transforms.v2")
