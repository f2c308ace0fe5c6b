"""Recording what runs: storages and their releases, categories, modules, host values, and the KV cache.

`worker/cuda/attributed.py` does the same on real hardware.
"""
