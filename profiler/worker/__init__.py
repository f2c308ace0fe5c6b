"""One trial in one process: from a job to a stored record."""

from profiler.worker.run import run_job

__all__ = ["run_job"]
