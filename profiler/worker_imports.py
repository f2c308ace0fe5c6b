"""All slow imports of a worker, for the warmed process that workers are forked from.

Imported once per sweep. It starts no thread and uses no GPU, so that forking stays safe.
"""

import gc
import logging

# Imported modules stay: collecting garbage among them takes a quarter of the time of the imports.
gc.disable()

# At import bitsandbytes warns that a kernel for inference on the CPU is not installed. It is not needed here.
_log = logging.getLogger("bitsandbytes.backends.cpu.ops")
_level, _log.level = _log.level, logging.ERROR

from profiler.measurement.counters.untouched_cuda import compiled_at_first_call, untouched_cuda  # noqa: E402

with untouched_cuda(), compiled_at_first_call():
    import profiler.worker.cuda.real  # after the line above, which silences the warning
    import profiler.worker.simulated  # noqa: F401
    from profiler.simulation.session import freeze_imported

_log.level = _level

# Workers need not collect garbage there either; it would copy memory pages that they share.
freeze_imported()
gc.enable()
