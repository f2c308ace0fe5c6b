"""`python -m profiler.sweep +grid=NAME [key=value ...]`: from a question to the table that answers it.

Hydra composes one configuration. The points of the grid are expanded, read and checked here, all before the first trial
starts. Then each trial runs in its own process, and the results are written.

Exit codes: docs/exit_codes.md.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial

from profiler.analysis.times.sweep_time import SweepTally
from profiler.analytical.many import estimates_by_trial
from profiler.command_line import as_command, print_error, print_line
from profiler.config.trials.demand import comparable_group, memory_rank, needs_at_most
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import EXIT_OK, UsageError
from profiler.domain.machines.engines import Machines, OtherMachines
from profiler.domain.runs.outcome import Estimate
from profiler.domain.trials.labels import names_of
from profiler.domain.trials.trial import PlannedTrial, TrialSpec
from profiler.execution import OpenTrials
from profiler.execution.pythons import environment_folder
from profiler.execution.trials import NeedsAtMost, Pruning, stored_answers
from profiler.storage.files.atomic import last_resort
from profiler.storage.stores.objects import Objects
from profiler.storage.stores.trial_store import TrialStore
from profiler.sweep.command import read_command
from profiler.sweep.conclusion.results import (
    Assemble,
    assemble,
    conclude,
    is_of_this_card,
    keep_what_has_finished,
    planned,
    show_plan,
    under_earlier_names,
)
from profiler.sweep.parts import SweepParts, WhileReadable, in_round
from profiler.sweep.prepared.composition import show_instead
from profiler.sweep.prepared.plan import make_writable, order_for_pruning
from profiler.sweep.prepared.preparation import Sweep, architecture_lookup, prepare_each, remembering, with_slots


@as_command("sweep", when_interrupted="What has finished is kept; the same command continues from there.")
def main(argv: Sequence[str] | None = None, *, parts: SweepParts | None = None) -> int:
    """Run the sweep that `argv` (without the program) asks for, and return the exit code."""
    return _main(sys.argv[1:] if argv is None else list(argv), parts or SweepParts())


def _main(words: Sequence[str], parts: SweepParts) -> int:
    command = read_command(words)
    if command.show_flags:
        if command.faults:
            raise UsageError(command.faults)
        return show_instead(command)
    config_of = remembering(parts.load_model_config)
    architecture_of = architecture_lookup(config_of)

    def estimates(specs: Mapping[str, TrialSpec]) -> dict[str, Estimate]:
        return estimates_by_trial(specs, parts.estimates, architecture_of)

    sweeps = [with_slots(each, words, parts) for each in prepare_each(command, parts, architecture_of, config_of)]
    plans = [planned(each) for each in sweeps]
    shard = sweeps[0].options.shard
    if shard is not None:
        print_line(f"Shard {shard} has {len(plans[0])} of {len(sweeps[0].specs)} trials.")
        if not plans[0]:
            return EXIT_OK
    if sweeps[0].options.dry_run:
        for line in dict.fromkeys(line for sweep in sweeps for line in sweep.lines):
            print_line(line)
        found = estimates({trial.trial_id: trial.spec for trial in plans[0]})
        knows_ids = len(sweeps) == 1 and sweeps[0].knows_ids
        show_plan(sweeps[0], plans[0], found, architecture_of, knows_ids=knows_ids)
        return EXIT_OK
    names = names_of([environment_folder(python) for python in command.pythons]) if command.pythons else ("",)
    codes = []
    for sweep, plan, name in zip(sweeps, plans, names, strict=True):
        write = partial(assemble, sweep, parts, estimates=estimates, command_line=shlex.join(words))
        codes.append(_run_sweep(sweep, plan, parts, architecture_of, write, environment=name))
    if command.pythons:
        from profiler.sweep.conclusion.results import Environment, compare_environments  # imports pandas

        environments = [
            Environment(name=name, versions=sweep.versions, trial_ids=tuple(trial.trial_id for trial in plan))
            for name, sweep, plan in zip(names, sweeps, plans, strict=True)
        ]
        codes.append(compare_environments(sweeps[0].folder, environments, max_increase=command.max_increase))
    # A trial without an answer comes first: the comparison lacks it.
    return next((code for code in codes if code != EXIT_OK), EXIT_OK)


def _run_sweep(
    sweep: Sweep,
    plan: list[PlannedTrial],
    parts: SweepParts,
    architecture_of: Callable[[str], Architecture],
    write: Assemble,
    *,
    environment: str,
) -> int:
    """Run a plan, write its results and return the exit code. `environment` is named where several are compared."""
    if environment:
        print_line(f"{environment}:")
    for line in sweep.lines:
        print_line(line)
    lacking = make_writable(sweep.folder)
    if lacking:
        print_error(lacking)
    plan = under_earlier_names(sweep, plan, parts)
    has_run = False
    with last_resort("sweep", folder=sweep.folder):
        try:
            engine = sweep.cluster or sweep.array
            with closing(engine) if engine is not None else nullcontext():
                marks = sweep.array.reports if sweep.array is not None else None
                run_plan(sweep, plan, parts, architecture_of, marks=marks)
            has_run = True
            records, left_out = write()
            return conclude(sweep, plan, parts, records, complete=not left_out, to_terminal=not environment)
        except BaseException as error:
            if not has_run or isinstance(error, KeyboardInterrupt):
                keep_what_has_finished(sweep, parts, write)
            raise


def run_plan(
    sweep: Sweep,
    plan: Sequence[PlannedTrial],
    parts: SweepParts,
    architecture_of: Callable[[str], Architecture],
    *,
    marks: Objects | None = None,
) -> None:
    """Run the trials that no stored record answers. `marks`: those that have ended on the slots of an array."""
    store = parts.open_store(sweep)
    with in_round(store, [trial.trial_id for trial in plan], sweep.options, marks):
        _run_unanswered(sweep, plan, parts, architecture_of, store)


def _run_unanswered(
    sweep: Sweep,
    plan: Sequence[PlannedTrial],
    parts: SweepParts,
    architecture_of: Callable[[str], Architecture],
    store: TrialStore,
) -> None:
    options = sweep.options
    answered = stored_answers([trial.trial_id for trial in plan], store=store, options=options)
    pending = [trial for trial in plan if trial.trial_id not in answered]
    if len(pending) < len(plan):
        print_line(f"{len(plan) - len(pending)} of {len(plan)} trials are stored already in {sweep.place}.")
    if not pending:
        return
    in_order = partial(needs_at_most, architecture_of=architecture_of)
    pruning = _pruning(sweep, store, in_order) if options.prune else None
    if pruning is not None:
        pending = order_for_pruning(pending, partial(memory_rank, architecture_of=architecture_of))
    tally = SweepTally(
        pending,
        price_of=sweep.prices.of,
        # Slots are reported one by one.
        other_machines=store.other_machines if sweep.array is None else OtherMachines,
        at=Machines(gpus=len(sweep.gpu_uuids) or None),
    )
    with WhileReadable(parts.watch(tally)) as observer:
        trials = OpenTrials(options=options, store=store, versions=sweep.versions, observer=observer, pruning=pruning)
        notes = parts.run(sweep.runner, pending, trials)
    for sentence in notes:
        print_error(sentence)


def _pruning(sweep: Sweep, store: TrialStore, in_order: NeedsAtMost) -> Pruning:
    """Return pruning that knows what earlier sweeps found on this card."""
    pruning = Pruning(needs_at_most=in_order, group_of=lambda spec: (comparable_group(spec), sweep.hardware_of(spec)))
    if sweep.options.resume and sweep.gpu_uuids:
        # An out-of-memory of the whole card implies one of the capped card.
        pruning.learn([record for record in store.read_all() if is_of_this_card(sweep, record)])
    return pruning
