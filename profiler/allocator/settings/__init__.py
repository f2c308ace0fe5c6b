"""Settings of PyTorch's allocator, read from PYTORCH_ALLOC_CONF, and the sizes that follow from them."""
