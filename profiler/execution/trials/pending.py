"""The trials of a sweep that wait to run."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator

from profiler.domain.trials.trial import PlannedTrial, run_key


class Pending:
    """A queue of trials from which those of one simulated run can be taken without a look at all others."""

    def __init__(self, trials: Iterable[PlannedTrial]) -> None:
        """Wait with `trials`, whose ids differ, in order."""
        self._trials: OrderedDict[str, PlannedTrial] = OrderedDict()
        self._keys: dict[str, Hashable] = {}
        self._of_run: dict[Hashable, dict[str, None]] = {}
        for trial in trials:
            self.append(trial)

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[PlannedTrial]:
        return iter(self._trials.values())

    def popleft(self) -> PlannedTrial:
        """Take the first trial."""
        trial_id, trial = self._trials.popitem(last=False)
        self._forget(trial_id)
        return trial

    def append(self, trial: PlannedTrial) -> None:
        """Put a trial at the end."""
        self._trials[trial.trial_id] = trial
        if trial.trial_id not in self._keys:
            self._keys[trial.trial_id] = run_key(trial.spec)
        key = self._keys[trial.trial_id]
        if key is not None:
            self._of_run.setdefault(key, {})[trial.trial_id] = None

    def appendleft(self, trial: PlannedTrial) -> None:
        """Put a trial at the front."""
        self.append(trial)
        self._trials.move_to_end(trial.trial_id, last=False)

    def remove(self, trial: PlannedTrial) -> None:
        """Take one trial, wherever it waits."""
        del self._trials[trial.trial_id]
        self._forget(trial.trial_id)

    def siblings(self, trial: PlannedTrial) -> list[PlannedTrial]:
        """Return the waiting trials that the same simulated run answers."""
        key = self._keys[trial.trial_id] if trial.trial_id in self._keys else run_key(trial.spec)
        return [self._trials[trial_id] for trial_id in self._of_run.get(key, ())]

    def _forget(self, trial_id: str) -> None:
        of_run = self._of_run.get(self._keys[trial_id])
        if of_run is not None:
            of_run.pop(trial_id, None)
