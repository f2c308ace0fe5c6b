"""Attention on CUDA: its kernels, and their scratch."""
