"""`python -m profiler.monitor [key=value ...] [COMMAND ...]`: the GPUs now, or the memory of any command."""
