"""Everything slow that a worker imports, for the warmed process that workers are forked from.

Imported once a sweep. Importing it starts no thread and touches no GPU, so that forking stays safe.
"""

import gc
import logging

# What is imported is there to stay: looking for garbage among it takes a quarter of the time that imports take.
gc.disable()

# At its import bitsandbytes warns that a kernel for inference on the CPU is not installed; nobody here misses it.
_log = logging.getLogger("bitsandbytes.backends.cpu.ops")
_level, _log.level = _log.level, logging.ERROR

from profiler.measurement.untouched_cuda import untouched_cuda  # noqa: E402

with untouched_cuda():
    import profiler.worker.real  # after the line above, or it warns all the same
    import profiler.worker.simulated  # noqa: F401

_log.level = _level

# Nor need a worker look there, or copy pages that it shares with the others only to count references.
gc.freeze()
gc.enable()
