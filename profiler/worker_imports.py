"""Everything slow that a worker imports, for the warmed process that workers are forked from.

Imported once a sweep. Importing it starts no thread and touches no GPU, so that forking stays safe.
"""

import logging

# At its import bitsandbytes warns that a kernel for inference on the CPU is not installed; nobody here misses it.
_log = logging.getLogger("bitsandbytes.backends.cpu.ops")
_level, _log.level = _log.level, logging.ERROR

import profiler.worker.real  # noqa: E402  # after the line above, or it warns all the same
import profiler.worker.simulated  # noqa: E402, F401

_log.level = _level
