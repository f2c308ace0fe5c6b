"""What CUDA's kernels allocate inside one operation, and what their results are."""
