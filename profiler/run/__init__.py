"""`python -m profiler.run [key=value ...] train.py [argument ...]`: any training script and its memory."""
