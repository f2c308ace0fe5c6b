"""Trials and scripts where torch has CUDA: on a real card, or on an emulated one."""
