"""`python -m profiler.run [key=value ...] train.py [argument ...]`: any training script, measured, emulated or simulated."""
