from torchvision import any_name_of

__getattr__ = any_name_of("torchvision.io")
