"""Labels of specifications and of records."""

from collections.abc import Sequence
from dataclasses import replace

from profiler.domain.labels import naming
from profiler.domain.outcome import TrialRecord
from profiler.domain.trial import SPEC_KEYS, TrialSpec


def labels(specs: Sequence[TrialSpec]) -> list[str]:
    """Return one label per specification: ``"LoRA + checkpointing"``, or ``"full, num_generations=8"``.

    Two specifications have the same label exactly if they are equal but for the model.
    """
    trials = [{key: getattr(spec, key) for key in SPEC_KEYS} for spec in specs]
    found = naming(trials)
    return [found.label(trial) for trial in trials]


def relabelled(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return `records` with labels that tell all of them apart, also those of different sweeps."""
    written = labels([record.spec for record in records])
    return [replace(record, label=label) for record, label in zip(records, written, strict=True)]
