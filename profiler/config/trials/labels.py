"""Labels of specifications and of records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from profiler.domain.runs.outcome import TrialRecord
from profiler.domain.trials.labels import naming
from profiler.domain.trials.trial import SPEC_KEYS, TrialSpec


class _Keys(Mapping[str, object]):
    """The keys of a specification, without a copy of them: a sweep can have 100,000."""

    __slots__ = ("_spec",)

    def __init__(self, spec: TrialSpec) -> None:
        self._spec = spec

    def __getitem__(self, key: str) -> object:
        return getattr(self._spec, key)

    def __iter__(self) -> Iterator[str]:
        return iter(SPEC_KEYS)

    def __len__(self) -> int:
        return len(SPEC_KEYS)


def labels(specs: Sequence[TrialSpec]) -> list[str]:
    """Return one label per specification: ``"LoRA + checkpointing"``, or ``"full, num_generations=8"``.

    Two specifications have the same label exactly if they are equal but for the model.
    """
    trials = [_Keys(spec) for spec in specs]
    found = naming(trials)
    return [found.label(trial) for trial in trials]


def relabelled(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return `records` with labels that tell all of them apart, also those of different sweeps."""
    written = labels([record.spec for record in records])
    return [replace(record, label=label) for record, label in zip(records, written, strict=True)]
