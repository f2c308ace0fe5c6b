"""The round of a sweep: how long trials that have ended without an answer do not run again."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from profiler.command_line import Interrupted, print_line
from profiler.config.options.run_options import RunOptions
from profiler.storage.stores.objects import Objects
from profiler.storage.stores.trial_store import TrialStore


@contextmanager
def in_round(store: TrialStore, trial_ids: Sequence[str], options: RunOptions, marks: Objects | None) -> Iterator[None]:
    """Take part in the round of a plan. It goes on after a machine that is taken away, because that may come back.

    Args:
        store: Where the records are.
        trial_ids: The plan.
        options: How trials run.
        marks: Where slots note the trials that have ended; None where there are none.
    """
    # Each of these lets a trial with an answer run again.
    runs_all = not options.resume or options.snapshot or options.breakdown
    store.take_part(trial_ids, marks=marks, runs_all=runs_all)
    if ended := len(store.ended() & set(trial_ids)):
        those = "1 trial that has ended in it does" if ended == 1 else f"{ended} trials that have ended in it do"
        print_line(f"This sweep goes on: {those} not run again before its end, whatever the result.")
    goes_on = False
    try:
        yield
    except Interrupted as error:
        goes_on = error.number is not signal.SIGINT
        raise
    finally:
        if not goes_on:
            store.end_round()
