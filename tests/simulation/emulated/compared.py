"""A scenario on the simulated card, against what was recorded of it."""

import gzip
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from emulated.scenarios import ATTENTION, AUTOCAST, KERNELS, PRODUCTS, Program

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Phase
from profiler.simulation.session import Simulation

TABLE = Path(__file__).parent / "scenarios.json.gz"
CARDS = ("a100-80gb", "b200-180gb", "h100-80gb", "l40s-48gb", "rtx-5090-32gb", "t4-16gb")

SELECTION_BYTES = 1279
"""Temporary storage of CUB's selections, which the simulation leaves out."""


@cache
def _table() -> Mapping[str, Any]:
    return json.loads(gzip.decompress(TABLE.read_bytes()))


def recorded(gpu: str, name: str) -> list[int]:
    """Return the recorded events of a scenario: bytes taken, and negative bytes given back."""
    return list(_table()["answers"][KNOWN_GPUS[gpu].title][name])


def recorded_without_selections(gpu: str, name: str) -> list[int]:
    """Return the recorded events but for what CUB's selections take and give back."""
    return [size for size in recorded(gpu, name) if abs(size) != SELECTION_BYTES]


def simulated(gpu: str, name: str, scenario: Callable[[str], Program]) -> list[int]:
    """Return the events of a scenario on the simulated card; of products in a process that has made none before."""
    if name not in PRODUCTS:
        return _after_products(gpu)[name]
    simulation = Simulation(KNOWN_GPUS[gpu])
    with simulation.running():
        simulation.recorder.enter(Phase.FORWARD)
        return _events(simulation, scenario)


@cache
def _after_products(gpu: str) -> Mapping[str, list[int]]:
    """Every scenario but the products, each run once before, so that the workspaces of both threads are there."""
    simulation, found = Simulation(KNOWN_GPUS[gpu]), {}
    with simulation.running():
        simulation.recorder.enter(Phase.FORWARD)
        for name, scenario in (ATTENTION | KERNELS | AUTOCAST).items():
            scenario("meta")()
            found[name] = _events(simulation, scenario)
    return found


def _events(simulation: Simulation, scenario: Callable[[str], Program]) -> list[int]:
    run, trace = scenario("meta"), simulation.recorder.trace
    before = len(trace.events)
    kept = run()
    found = [(1 if event > 0 else -1) * trace.sizes_bytes[abs(event) - 1] for event in trace.events[before:]]
    del kept
    return found
