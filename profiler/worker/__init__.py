"""One trial in one process: from a job to a stored record.

Simulated, on real hardware, or emulated; once per rank where there are several GPUs. A script has a process of its
own, which finds this package by the path of its file and needs nothing else of our environment.
"""

from profiler.worker.run import run_job

__all__ = ["run_job"]
