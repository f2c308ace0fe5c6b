"""Engines: what starts and places the processes that run trials."""

from enum import StrEnum


class Engine(StrEnum):
    """Values of the run option `engine`."""

    LOCAL = "local"
    """Processes of this machine."""
    RAY = "ray"
    """Actors of a Ray cluster, one per slot."""
    SLURM = "slurm"
    """Jobs of a Slurm cluster, one per slot."""
