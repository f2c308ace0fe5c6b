"""Running the real trainer on a GPU that is not there.

torch's `meta` device plays the GPU: tensors have shapes and no values. Everything that is made on it is recorded, and
what CUDA would do otherwise than `meta` is put back: autocast, the attention kernels, trl's Triton path, the fused
kernels of the optimizers. It does not know trl's trainer; that comes from `profiler.training`.
"""
