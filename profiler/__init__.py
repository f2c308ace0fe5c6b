"""Profile the GPU memory of training by trl: measured, simulated, estimated and published, side by side."""

__version__ = "0.1.0"
