"""Recording what runs: storages and their releases, categories, modules, host values, and the KV cache.

`tracing_mode.py` does the same on real hardware.
"""
