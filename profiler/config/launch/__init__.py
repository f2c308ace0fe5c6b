"""Command lines that start a training: of trl, accelerate, torchrun, DeepSpeed and Python."""
