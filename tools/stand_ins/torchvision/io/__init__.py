import enum

from never_called import any_name_of


class ImageReadMode(enum.Enum):
    UNCHANGED = 0
    GRAY = 1
    RGB = 3


__getattr__ = any_name_of("torchvision.io")
