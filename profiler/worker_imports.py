"""Everything slow that a worker imports, for the warmed process that workers are forked from.

Imported once a sweep. Importing it starts no thread and touches no GPU, so that forking stays safe.
"""

import profiler.worker.real
import profiler.worker.simulated  # noqa: F401
