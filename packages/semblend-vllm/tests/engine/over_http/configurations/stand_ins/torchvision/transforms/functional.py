from torchvision import any_name_of
from torchvision.transforms import InterpolationMode

__all__ = ["InterpolationMode"]
__getattr__ = any_name_of("torchvision.transforms.functional")
