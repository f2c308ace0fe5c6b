"""Profile the GPU memory of GRPO training: measured, simulated, estimated and published, side by side."""

__version__ = "0.1.0"
