"""`python -m maintenance.bench`: how long a simulated trial takes, start-up apart from steps, and what makes it fast.

Times depend on the machine; the ratios are made in one run and can be compared.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from maintenance.benchmarks.callback_cost import ACCUMULATION, ALLOWED_SHARE, NEW_TOKENS, callback_cost
from maintenance.benchmarks.emulated_operators import operator_seconds
from maintenance.benchmarks.many_trials import hundred_thousand_trials
from maintenance.benchmarks.scale import measure
from maintenance.benchmarks.trial_parts import seconds_of_parts
from maintenance.engine_cost.cost import ALLOWED_S, EngineCost, added_s, cost, engines, settings, where
from profiler.allocator import AllocatorConfig, replay_on_card
from profiler.analytical import estimate
from profiler.analytical.many import estimate_table
from profiler.command_line import as_command, print_text, readable
from profiler.config.models.architecture import read_architecture
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK, Fault, UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Backend, Lengths, TrialSpec, Tuning
from profiler.measurement.driver.nvml import GpuProbe
from profiler.measurement.driver.pynvml_driver import PynvmlDriver
from profiler.measurement.driver.visible import visible_gpus
from profiler.measurement.samples.process_tree import RecentProcessTree
from profiler.measurement.samples.sampler import PERIOD_S, Sampler
from profiler.simulation.device import op_cache
from profiler.worker.simulated import SimulatedRun, simulate

Result = TypeVar("Result")

_CARD = KNOWN_GPUS["h100-80gb"]
_TRIAL = TrialSpec(backend=Backend.SIMULATED, gpu=_CARD.name, model="qwen2.5-0.5b", beta=0.04)

_DEEP_TRIAL = replace(
    _TRIAL,
    model="qwen2.5-7b",
    tuning=Tuning.LORA,
    lora_rank=16,
    lora_alpha=32,
    lora_target_modules=("q_proj", "k_proj", "o_proj", "up_proj", "down_proj"),
)

_SAMPLES = 1000
_ESTIMATES = 100
_CHEAP_TRIALS = 200
_SLOTS = (1, 2)
_NODES = (1, 2)
_FIVE_MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen2.5-14b")


_USAGE = """\
python -m maintenance.bench

Measures how long simulated trials and estimates take on this machine, in about
four minutes, and prints one table. It has no keys. Engines of many machines are
measured where they are at hand: Ray in the environment of `make engines`, and
Slurm within `python tests/stress/slurm_node.py`.

Examples:
  python -m maintenance.bench
  make bench
"""


@as_command("bench")
def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if set(words) & {"-h", "--help"}:
        print_text(_USAGE)
        return EXIT_OK
    if words:
        raise UsageError([Fault(key="argument", found=word, problem="the benchmark has no keys") for word in words])
    with readable():
        _print_table()
    return EXIT_OK


def _print_table() -> None:
    console = Console()
    table = Table("what", "time", "compared with", "ratio", title="Simulated trials", title_justify="left")
    startup_s = _seconds(_start_up)
    table.add_row("start-up: imports, once a sweep", f"{startup_s:.1f} s", "", "")
    small_s, small = _timed(lambda: simulate(_TRIAL, BUILTIN_MODELS[_TRIAL.model].config))
    table.add_row("0.5B, full, 3 steps", f"{small_s:.1f} s", "", "")
    forgetful_s = _without_plans()
    table.add_row("the same, operations not remembered", f"{forgetful_s:.1f} s", "0.5B", f"{forgetful_s / small_s:.1f}")
    long = replace(_TRIAL, steps=10, lengths=Lengths.FORCED)
    long_s, _ = _timed(lambda: simulate(long, BUILTIN_MODELS[long.model].config))
    table.add_row("0.5B, full, 10 steps alike", f"{long_s:.1f} s", "", "")
    whole_s, _ = _timed(lambda: simulate(long, BUILTIN_MODELS[long.model].config, to_the_end=True))
    table.add_row("the same, run to the end", f"{whole_s:.1f} s", "10 steps", f"{whole_s / long_s:.1f}")
    large = replace(_TRIAL, model="qwen2.5-14b", optim=Optimizer.ADAMW_8BIT)
    large_s, _ = _timed(lambda: simulate(large, BUILTIN_MODELS[large.model].config))
    table.add_row("14B, full, 8-bit, checkpointing", f"{large_s:.1f} s", "0.5B", f"{large_s / small_s:.1f}")
    _add_allocator(table, small, small_s)
    _add_parts(table)
    _add_estimates(table)
    _add_sampler(table)
    _add_callback(table)
    _add_emulated_operators(table)
    _add_scale(table)
    _add_engines(table)
    console.print(table)


def _add_allocator(table: Table, run: SimulatedRun, small_s: float) -> None:
    events = len(run.trace.events)
    replay_s = _seconds(lambda: replay_on_card(run.trace, capacity_bytes=_CARD.memory_bytes, config=AllocatorConfig()))
    each = f"{replay_s:.1f} s, {1e6 * replay_s / events:.1f} µs an event"
    table.add_row(f"one more card: {events:,} events replayed", each, "0.5B", f"{replay_s / small_s:.2f}")


def _add_parts(table: Table) -> None:
    """The parts of one trial that runs with few layers."""
    _, found = _timed(lambda: seconds_of_parts(_DEEP_TRIAL))
    whole_s = sum(found.values())
    table.add_row("7B, LoRA, checkpointing: run and replay", f"{whole_s:.1f} s", "", "")
    for part, seconds in found.items():
        table.add_row(f"  {part}", f"{seconds:.2f} s", "the trial", f"{seconds / whole_s:.2f}")


def _add_estimates(table: Table) -> None:
    """The closed form: one trial, and many as arrays."""
    architectures = {name: read_architecture(BUILTIN_MODELS[name].config, model=name) for name in _FIVE_MODELS}
    estimate(_TRIAL, architectures[_TRIAL.model])
    one_s = _seconds(lambda: [estimate(_TRIAL, architectures[_TRIAL.model]) for _ in range(_ESTIMATES)]) / _ESTIMATES
    table.add_row("one estimate", f"{1e3 * one_s:.2f} ms", "", "")
    trials = hundred_thousand_trials(architectures)
    estimate_table(trials)
    many_s = _seconds(lambda: estimate_table(trials))
    share = f"{many_s / (100_000 * one_s):.4f}"
    table.add_row("100,000 estimates as arrays", f"{many_s:.2f} s", "100,000 single ones", share)


def _add_scale(table: Table) -> None:
    """From many records to the page; the trials themselves are made up."""
    found = measure()
    parts = f"tables {found.tables_s:.1f} s, report {found.report_s:.1f} s"
    table.add_row(f"{found.trials:,} varied records: {parts}", f"{found.total_s:.1f} CPU s", "goal", "30 s")
    table.add_row("the same, most memory", f"{found.memory_mib:.0f} MiB", "goal", "1 GB")
    table.add_row("the same, report.html", f"{found.page_mb:.1f} MB", "goal", "15 MB")


def _add_engines(table: Table) -> None:
    """What each engine at hand adds to a trial, and how that changes with the numbers of slots and of nodes."""
    every: list[EngineCost] = []
    for setting in settings(engines(), jobs=_SLOTS, nodes=_NODES):
        every.append(cost(setting, trials=_CHEAP_TRIALS))
        more_s = added_s(every[-1], every)
        what = f"{where(setting)}: from one of {_CHEAP_TRIALS} cheap trials to the next"
        added = "" if more_s is None else f"local, {1e3 * ALLOWED_S:.0f} ms more allowed"
        table.add_row(
            what, f"{1e3 * every[-1].each_s:.0f} ms", added, "" if more_s is None else f"{1e3 * more_s:+.0f} ms"
        )


def _add_sampler(table: Table) -> None:
    """What looking costs: the time of one sample, as a share of the time from one to the next."""
    visible = visible_gpus()
    if not visible.gpus:
        table.add_row("one sample of the driver", "no GPU here", "", "")
        return
    probe = GpuProbe(PynvmlDriver(), visible.gpus[0].uuid, own_processes=RecentProcessTree())
    sampler = Sampler(probe, clock=time.monotonic, where=lambda: (None, 0))
    sample_s = _seconds(lambda: [sampler.take() for _ in range(_SAMPLES)]) / _SAMPLES
    table.add_row("one sample of the driver", f"{1e6 * sample_s:.0f} µs", "its period", f"{sample_s / PERIOD_S:.3f}")


def _add_callback(table: Table) -> None:
    """What `VramCallback` costs: its time in one step, as a share of the 0.5 % of a step of one second."""
    found = callback_cost()
    counters = "" if found.has_gpu else ", no GPU: without counters"
    what = f"VramCallback: one step of GRPO, {ACCUMULATION} micro-batches, {NEW_TOKENS} tokens{counters}"
    ratio = f"{found.shortest_step_s:.2f}"
    table.add_row(what, f"{1e3 * found.step_s:.2f} ms", f"{ALLOWED_SHARE:.1%} of a step of 1 s", ratio)


def _add_emulated_operators(table: Table) -> None:
    """What values cost on the emulated card: one operator with them, compared with the same without."""
    found = operator_seconds(_CARD)
    if isinstance(found, str):
        table.add_row("one operator, emulated", "no environment here", "", "")
        return
    for what, (with_values_s, without_s) in found.items():
        ratio = f"{with_values_s / without_s:.1f}"
        table.add_row(f"one operator, emulated: {what}", f"{1e6 * with_values_s:.0f} µs", "without values", ratio)


def _start_up() -> None:
    subprocess.run([sys.executable, "-c", "import profiler.worker_imports"], check=True, capture_output=True)


def _without_plans() -> float:
    remembered = op_cache.REMEMBER
    op_cache.REMEMBER = False
    try:
        return _seconds(lambda: simulate(_TRIAL, BUILTIN_MODELS[_TRIAL.model].config))
    finally:
        op_cache.REMEMBER = remembered


def _seconds(action: Callable[[], object]) -> float:
    return _timed(action)[0]


def _timed(action: Callable[[], Result]) -> tuple[float, Result]:
    started = time.perf_counter()
    with redirect_stdout(StringIO()):  # the trainer's own log
        result = action()
    return time.perf_counter() - started, result


if __name__ == "__main__":
    sys.exit(main())
