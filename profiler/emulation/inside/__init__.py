"""Runs inside the emulated process. No other module imports these; they import torch only after the program did."""
