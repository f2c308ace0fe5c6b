"""PyTorch's own CUDA build on an emulated driver: a card that has memory and computes nothing (docs/emulation.md)."""
