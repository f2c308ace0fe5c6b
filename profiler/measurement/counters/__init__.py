"""CUDA's counters: read and reset by phase, shared with the watched program, without initialising CUDA for it."""
