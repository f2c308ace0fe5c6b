"""A real GPU: NVIDIA's driver and CUDA's counters, which a watched program reads and resets as if it were alone.

One file calls NVML, by a narrow protocol. Imports initialise no CUDA. A thread samples the driver.
"""
