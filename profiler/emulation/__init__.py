"""PyTorch's own CUDA build on an emulated driver: a card that has memory and computes nothing (docs/emulation.md).

`driver/` has the C and C++ of the driver. `startup/` and `inside/` run in the emulated process, and only `inside/`
imports torch. Its figures are emulated, never measured; recordings of it are test data of the allocator's model and
of the simulation.
"""
