from never_called import any_name_of

from . import functional
from .modes import InterpolationMode

__all__ = ["InterpolationMode", "functional"]
__getattr__ = any_name_of("torchvision.transforms")
