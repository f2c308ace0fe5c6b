"""`python -m profiler.sweep +grid=NAME [key=value ...]`: from a question to the table that answers it.

Hydra composes one configuration. The points of the grid are expanded, read and checked here, all before the first trial
starts. Then each trial runs in its own process, and the results are written.

Exit codes: docs/exit_codes.md.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from profiler.command_line import as_command, print_error, print_line
from profiler.config.demand import comparable_group, memory_rank, needs_at_most
from profiler.domain.architecture import Architecture
from profiler.domain.errors import EXIT_OK, UsageError
from profiler.domain.outcome import Estimate
from profiler.domain.trial import PlannedTrial, TrialSpec
from profiler.execution.decision import stored_answers
from profiler.execution.pruning import NeedsAtMost, Pruning
from profiler.rendering.plan_table import plan_table
from profiler.report.estimates import estimates_by_trial
from profiler.storage.last_resort import last_resort
from profiler.storage.trial_store import TrialStore
from profiler.sweep.command import read_command
from profiler.sweep.composition import show_instead
from profiler.sweep.folder import make_writable
from profiler.sweep.output import WhileReadable
from profiler.sweep.parts import SweepParts
from profiler.sweep.plan import of_shard, order_for_pruning, plan_trials
from profiler.sweep.preparation import Sweep, architecture_lookup, prepare, remembering
from profiler.sweep.results import assemble, conclude, keep_what_has_finished
from profiler.sweep.stored import is_of_this_card, under_earlier_names


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

    sweep = prepare(command, parts, architecture_of, config_of)
    for line in sweep.lines:
        print_line(line)
    plan = plan_trials(sweep.grid.name, sweep.specs, sweep.versions, hardware=sweep.hardware, files_of=sweep.files_of)
    if sweep.options.shard is not None:
        whole, plan = len(plan), of_shard(plan, sweep.options.shard)
        print_line(f"Shard {sweep.options.shard} has {len(plan)} of {whole} trials.")
    if sweep.options.dry_run:
        found = estimates({trial.trial_id: trial.spec for trial in plan})
        print_line(plan_table(plan, found, knows_ids=sweep.knows_ids))
        return EXIT_OK
    if not plan:
        return EXIT_OK
    lacking = make_writable(sweep.folder)
    if lacking:
        print_error(lacking)
    plan = under_earlier_names(sweep, plan, parts)
    write = partial(assemble, sweep, parts, estimates=estimates, command_line=shlex.join(words))
    has_run = False
    with last_resort("sweep", folder=sweep.folder):
        try:
            _run(sweep, plan, parts, architecture_of)
            has_run = True
            records, left_out = write()
            return conclude(sweep, plan, parts, records, complete=not left_out)
        except BaseException as error:
            if not has_run or isinstance(error, KeyboardInterrupt):
                keep_what_has_finished(sweep, parts, write)
            raise


def _run(
    sweep: Sweep, plan: Sequence[PlannedTrial], parts: SweepParts, architecture_of: Callable[[str], Architecture]
) -> None:
    """Run the trials that no stored record answers."""
    store = parts.open_store(sweep)
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
    with WhileReadable(parts.watch(len(pending))) as observer:
        notes = parts.run_trials(
            pending,
            options=options,
            store=store,
            versions=sweep.versions,
            observer=observer,
            gpu_uuids=sweep.gpu_uuids,
            pruning=pruning,
            interpreter_of=sweep.interpreter_of,
        )
    for sentence in notes:
        print_error(sentence)


def _pruning(sweep: Sweep, store: TrialStore, in_order: NeedsAtMost) -> Pruning:
    """Return pruning that knows what earlier sweeps found on this card."""
    pruning = Pruning(needs_at_most=in_order, group_of=comparable_group)
    if sweep.options.resume and sweep.gpu_uuids:
        # An out-of-memory of the whole card implies one of the capped card.
        pruning.learn([record for record in store.read_all() if is_of_this_card(sweep, record)])
    return pruning
