"""The choices of CUDA that `meta` does not make: kernels, what they save, and their scratch."""
