"""Building the emulated libraries of one installed torch, once, from the driver's sources and its entry points."""
