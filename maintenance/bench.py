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

from maintenance.benchmarks.callback_cost import ACCUMULATION, ALLOWED_SHARE, NEW_TOKENS, callback_cost
from maintenance.benchmarks.emulated_operators import operator_seconds
from maintenance.benchmarks.first_answer import ALLOWED_ANSWER_S, ALLOWED_INSTALL_S, first_answers
from maintenance.benchmarks.many_trials import hundred_thousand_trials
from maintenance.benchmarks.scale import measure
from maintenance.benchmarks.trial_parts import seconds_of_parts
from maintenance.engine_cost.cost import ALLOWED_S, EngineCost, added_s, cost, engines, settings, where
from profiler.allocator import AllocatorConfig, replay_on_card
from profiler.analytical import estimate
from profiler.analytical.many import estimate_table
from profiler.command_line import as_command, print_text
from profiler.config.models.architecture import read_architecture
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK, Fault, UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Backend, Lengths, TrialSpec, Tuning
from profiler.measurement.driver.nvml import GpuProbe
from profiler.measurement.driver.pynvml_driver import PynvmlDriver
from profiler.measurement.driver.visible import visible_gpus
from profiler.measurement.samples.host_usage import RecentProcessTree
from profiler.measurement.samples.sampler import PERIOD_S, Sampler
from profiler.rendering.document import Document, Row, Table, text_columns
from profiler.rendering.layouts.plain_text import plain_text
from profiler.simulation.device import op_cache
from profiler.worker.simulated import SimulatedRun, simulate

Result = TypeVar("Result")

_CARD = KNOWN_GPUS["h100-80gb"]
_TRIAL = TrialSpec(backend=Backend.SIMULATED, gpu=_CARD.name, model="qwen2.5-0.5b", beta=0.04)

_COLUMNS = text_columns(("what", "time", "compared with", "ratio"))
_DEEP_TRIAL = replace(
    _TRIAL,
    model="qwen2.5-7b",
    tuning=Tuning.LORA,
    lora_rank=16,
    lora_alpha=32,
    lora_target_modules=("q_proj", "k_proj", "o_proj", "up_proj", "down_proj"),
)

_SAMPLES = 1000
_TABLE_TRIALS = 25
"""As many as the main table has."""
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
    print_text(plain_text(Document(title="Simulated trials", blocks=[Table(_COLUMNS, _rows())])))
    return EXIT_OK


def _rows() -> list[Row]:
    rows: list[Row] = []
    startup_s = _seconds(_start_up)
    rows.append(("start-up: imports, once a sweep", f"{startup_s:.1f} s", "", ""))
    small_s, small = _timed(lambda: simulate(_TRIAL, BUILTIN_MODELS[_TRIAL.model].config))
    rows.append(("0.5B, full, 3 steps", f"{small_s:.1f} s", "", ""))
    forgetful_s = _without_plans()
    rows.append(("the same, operations not remembered", f"{forgetful_s:.1f} s", "0.5B", f"{forgetful_s / small_s:.1f}"))
    long = replace(_TRIAL, steps=10, lengths=Lengths.FORCED)
    long_s, _ = _timed(lambda: simulate(long, BUILTIN_MODELS[long.model].config))
    rows.append(("0.5B, full, 10 steps alike", f"{long_s:.1f} s", "", ""))
    whole_s, _ = _timed(lambda: simulate(long, BUILTIN_MODELS[long.model].config, to_the_end=True))
    rows.append(("the same, run to the end", f"{whole_s:.1f} s", "10 steps", f"{whole_s / long_s:.1f}"))
    large = replace(_TRIAL, model="qwen2.5-14b", optim=Optimizer.ADAMW_8BIT)
    large_s, _ = _timed(lambda: simulate(large, BUILTIN_MODELS[large.model].config))
    rows.append(("14B, full, 8-bit, checkpointing", f"{large_s:.1f} s", "0.5B", f"{large_s / small_s:.1f}"))
    _add_allocator(rows, small, small_s)
    _add_parts(rows)
    _add_first_answers(rows)
    _add_estimates(rows)
    _add_sampler(rows)
    _add_callback(rows)
    _add_emulated_operators(rows)
    _add_scale(rows)
    _add_engines(rows)
    return rows


def _add_allocator(rows: list[Row], run: SimulatedRun, small_s: float) -> None:
    events = len(run.trace.events)
    replay_s = _seconds(lambda: replay_on_card(run.trace, capacity_bytes=_CARD.memory_bytes, config=AllocatorConfig()))
    each = f"{replay_s:.1f} s, {1e6 * replay_s / events:.1f} µs an event"
    rows.append((f"one more card: {events:,} events replayed", each, "0.5B", f"{replay_s / small_s:.2f}"))


def _add_first_answers(rows: list[Row]) -> None:
    """From an empty environment to the first answer of the bare wheel, by pip and by uv."""
    found = first_answers()
    if isinstance(found, str):
        rows.append(("the bare wheel in an empty environment", f"not installed: {found}", "", ""))
        return
    for each in found:
        ratio = f"{each.install_s / ALLOWED_INSTALL_S:.2f}"
        goal = f"goal {ALLOWED_INSTALL_S:g} s"
        rows.append((f"the bare wheel, installed by {each.installer}", f"{each.install_s:.1f} s", goal, ratio))
        spread = f"{min(each.answers_s):.2f} to {max(each.answers_s):.2f} s, {each.processor_s:.2f} s of processor time"
        ratio = f"{each.answer_s / ALLOWED_ANSWER_S:.2f}"
        goal = f"goal {ALLOWED_ANSWER_S:g} s"
        rows.append((f"its first answer, a process each: {spread}", f"{each.answer_s:.2f} s", goal, ratio))


def _add_parts(rows: list[Row]) -> None:
    """The parts of one trial that runs with few layers."""
    _, found = _timed(lambda: seconds_of_parts(_DEEP_TRIAL))
    whole_s = sum(found.values())
    rows.append(("7B, LoRA, checkpointing: run and replay", f"{whole_s:.1f} s", "", ""))
    for part, seconds in found.items():
        rows.append((f"  {part}", f"{seconds:.2f} s", "the trial", f"{seconds / whole_s:.2f}"))
    after = measure(_TABLE_TRIALS)
    for what, seconds in (("tables", after.tables_s), ("page and figures", after.report_s)):
        text = f"{what} of {_TABLE_TRIALS} varied records, in a process"
        rows.append((text, f"{seconds:.2f} CPU s", "the trial", f"{seconds / whole_s:.2f}"))


def _add_estimates(rows: list[Row]) -> None:
    """The closed form: one trial, and many as arrays."""
    architectures = {name: read_architecture(BUILTIN_MODELS[name].config, model=name) for name in _FIVE_MODELS}
    estimate(_TRIAL, architectures[_TRIAL.model])
    one_s = _seconds(lambda: [estimate(_TRIAL, architectures[_TRIAL.model]) for _ in range(_ESTIMATES)]) / _ESTIMATES
    rows.append(("one estimate", f"{1e3 * one_s:.2f} ms", "", ""))
    trials = hundred_thousand_trials(architectures)
    estimate_table(trials)
    many_s = _seconds(lambda: estimate_table(trials))
    share = f"{many_s / (100_000 * one_s):.4f}"
    rows.append(("100,000 estimates as arrays", f"{many_s:.2f} s", "100,000 single ones", share))


def _add_scale(rows: list[Row]) -> None:
    """From many records to the page; the trials themselves are made up."""
    found = measure()
    parts = f"tables {found.tables_s:.1f} s, report {found.report_s:.1f} s"
    rows.append((f"{found.trials:,} varied records: {parts}", f"{found.total_s:.1f} CPU s", "goal", "30 s"))
    rows.append(("the same, most memory", f"{found.memory_mib:.0f} MiB", "goal", "1 GB"))
    rows.append(("the same, report.html", f"{found.page_mb:.1f} MB", "goal", "15 MB"))


def _add_engines(rows: list[Row]) -> None:
    """What each engine at hand adds to a trial, and how that changes with the numbers of slots and of nodes."""
    every: list[EngineCost] = []
    for setting in settings(engines(), jobs=_SLOTS, nodes=_NODES):
        every.append(cost(setting, trials=_CHEAP_TRIALS))
        more_s = added_s(every[-1], every)
        what = f"{where(setting)}: from one of {_CHEAP_TRIALS} cheap trials to the next"
        added = "" if more_s is None else f"local, {1e3 * ALLOWED_S:.0f} ms more allowed"
        rows.append(
            (what, f"{1e3 * every[-1].each_s:.0f} ms", added, "" if more_s is None else f"{1e3 * more_s:+.0f} ms")
        )


def _add_sampler(rows: list[Row]) -> None:
    """What looking costs: the time of one sample, as a share of the time from one to the next."""
    visible = visible_gpus()
    if not visible.gpus:
        rows.append(("one sample of the driver", "no GPU here", "", ""))
        return
    probe = GpuProbe(PynvmlDriver(), visible.gpus[0].uuid, own_processes=RecentProcessTree())
    sampler = Sampler(probe, clock=time.monotonic, where=lambda: (None, 0))
    sample_s = _seconds(lambda: [sampler.take() for _ in range(_SAMPLES)]) / _SAMPLES
    rows.append(("one sample of the driver", f"{1e6 * sample_s:.0f} µs", "its period", f"{sample_s / PERIOD_S:.3f}"))


def _add_callback(rows: list[Row]) -> None:
    """What `VramCallback` costs: its time in one step, as a share of the 0.5 % of a step of one second."""
    found = callback_cost()
    counters = "" if found.has_gpu else ", no GPU: without counters"
    what = f"VramCallback: one step of GRPO, {ACCUMULATION} micro-batches, {NEW_TOKENS} tokens{counters}"
    ratio = f"{found.shortest_step_s:.2f}"
    rows.append((what, f"{1e3 * found.step_s:.2f} ms", f"{ALLOWED_SHARE:.1%} of a step of 1 s", ratio))


def _add_emulated_operators(rows: list[Row]) -> None:
    """What values cost on the emulated card: one operator with them, compared with the same without."""
    found = operator_seconds(_CARD)
    if isinstance(found, str):
        rows.append(("one operator, emulated", "no environment here", "", ""))
        return
    for what, (with_values_s, without_s) in found.items():
        ratio = f"{with_values_s / without_s:.1f}"
        rows.append((f"one operator, emulated: {what}", f"{1e6 * with_values_s:.0f} µs", "without values", ratio))


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
