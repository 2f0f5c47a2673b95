"""SGLang's compiled kernels exist for GPUs only. With ``torch_native`` attention its CPU engine calls none of them."""

from never_called import any_name_of

__getattr__ = any_name_of("sgl_kernel")
