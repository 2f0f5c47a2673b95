from never_called import any_name_of

from .modes import InterpolationMode

__all__ = ["InterpolationMode"]
__getattr__ = any_name_of("torchvision.transforms.functional")
