"""Fakes of a sweep's outside world: no GPU, no worker, no parquet."""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from profiler.config.trials.identity import relabelled
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.machines.engines import OtherMachines
from profiler.domain.memory import Phase
from profiler.domain.runs.outcome import Estimate, Outcome, Status, TrialRecord, Verdict, Versions
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus
from profiler.storage.sweep_tables.tables import Written
from profiler.sweep.parts import ClusterRunner, LocalRunner, SweepParts

VERSIONS = Versions(torch="2.13.0", trl="1.16.0", transformers="5.23.0", peft=None, bitsandbytes=None, profiler="0.1")

NO_GPU = VisibleGpus(gpus=(), note="there is none in this test")

H100 = VisibleGpus(
    gpus=(VisibleGpu(uuid="GPU-1", name="NVIDIA H100", memory_bytes=KNOWN_GPUS["h100-80gb"].memory_bytes + 1),), note=""
)


class FakeStore:
    def __init__(self):
        self.records = {}

    def path(self, trial_id):
        """Where the store has files: nowhere."""
        return Path("/no/such/folder/records") / f"{trial_id}.json"

    def find(self, trial_id):
        return self.records.get(trial_id)

    def find_many(self, trial_ids):
        return [(trial_id, self.find(trial_id)) for trial_id in trial_ids]

    def has_snapshot(self, trial_id):
        return False

    def take_part(self, trial_ids, *, marks, runs_all):
        """One machine has no rounds."""

    def end_round(self):
        """One machine has no rounds."""

    def ended(self):
        return frozenset()

    def has_ended(self, trial_id):
        return False

    def other_machines(self):
        return OtherMachines()

    def gather(self):
        """What the tables need is here."""

    def share(self):
        """Nobody else needs the tables."""

    def read_all(self):
        return tuple(self.records[name] for name in sorted(self.records))

    def read_each(self):
        return iter(self.read_all())

    def write(self, record):
        self.records[record.trial_id] = record


def as_parts(run_trials):
    """Return a function that runs a plan, given what it needs by name, as a part of a sweep."""

    def run(runner, plan, trials):
        how = {name: getattr(trials, name) for name in ("options", "store", "versions", "observer", "pruning")}
        if isinstance(runner, LocalRunner):
            how |= {"gpu_uuids": runner.gpu_uuids, "interpreter_of": runner.program.interpreter_of}
        elif isinstance(runner, ClusterRunner):
            how |= {"cluster": runner.cluster, "kind_of": runner.kind_of}
        else:
            how |= {"array": runner.array}
        return run_trials(plan, **how)

    return run


@dataclass
class FakeWorld:
    """Remembers what the sweep did."""

    visible: VisibleGpus = NO_GPU
    statuses: dict[str, Status] = field(default_factory=dict)
    """Status by model; ok if absent."""
    interrupt: bool = False
    store: FakeStore = field(default_factory=FakeStore)
    runs: list = field(default_factory=list)
    """The plans that were run, with their keywords."""
    tables: dict = field(default_factory=dict)
    sampled: list = field(default_factory=list)

    def parts(self, **changes):
        parts = SweepParts(
            visible_gpus=lambda: self.visible,
            installed_versions=lambda: VERSIONS,
            load_model_config=SweepParts().load_model_config,
            estimates=lambda specs, known: [self.estimate(spec, known[spec.model]) for spec in specs],
            open_store=lambda sweep: self.store,
            watch=lambda tally: nullcontext(),
            run=as_parts(lambda plan, **how: self.run_trials(plan, **how)),
            write_tables=self.write_tables,
            render_folder=lambda folder, **how: self.sampled.append((folder, how)),
        )
        return replace(parts, **changes)

    def estimate(self, spec, architecture):
        size = architecture.hidden_size * 2**25
        return Estimate(
            peak_allocated_bytes=size,
            peak_reserved_bytes=None,
            peak_rule_bytes=2 * size,
            peak_phase=Phase.BACKWARD,
        )

    def run_trials(self, plan, **how):
        self.runs.append((plan, how))
        for trial in plan:
            if self.interrupt:
                raise KeyboardInterrupt
            outcome = Outcome(verdict=Verdict(status=self.statuses.get(trial.spec.model, Status.OK)))
            self.store.write(TrialRecord.of(trial, versions=how["versions"], outcome=outcome))
        return ()

    def write_tables(self, folder, records, estimates_of, **about):
        records = relabelled(list(records))
        estimates = estimates_of({record.trial_id: record.spec for record in records})
        self.tables = {"folder": folder, "records": records, "estimates": estimates, **about}
        return Written()
