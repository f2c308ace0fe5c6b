"""How long one operator takes on the emulated card, with and without values: what the dispatcher's overhead is."""

import json
import os
import subprocess
from collections.abc import Mapping

from profiler.domain.cards.gpu import Gpu
from profiler.domain.errors import ProfilerError
from profiler.emulation.launch import EmulatedPython, emulated_python, process_environment

_CALLS = 3000

_PROGRAM = f"""
import json, time, torch
integers = torch.arange(64, device="cuda")
floats = torch.zeros(1000, 1000, device="cuda")
def each_s(run):
    run()
    start = time.perf_counter()
    for _ in range({_CALLS}):
        run()
    return (time.perf_counter() - start) / {_CALLS}
print(json.dumps({{"64 integers": each_s(lambda: integers + 1), "1,000,000 floats": each_s(lambda: floats + 1)}}))
"""


def operator_seconds(gpu: Gpu) -> Mapping[str, tuple[float, float]] | str:
    """Return the seconds of one addition with and without values, by what is added; why not, without an environment."""
    try:
        python = emulated_python()
    except ProfilerError as error:
        return str(error)
    with_values, without = (_measured(python, gpu, values=values) for values in ("1", "0"))
    return {name: (seconds, without[name]) for name, seconds in with_values.items()}


def _measured(python: EmulatedPython, gpu: Gpu, *, values: str) -> Mapping[str, float]:
    environment = process_environment(python, gpu, base=os.environ) | {"EMULATED_VALUES": values}
    command = [str(python.executable), "-c", _PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))
