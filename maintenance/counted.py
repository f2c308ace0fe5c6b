"""`python -m maintenance.counted`: the work of the steps that claims about time compare, counted by the simulation.

The result is `profiler/published/counted.csv`: one row per configuration and phase. What is in it is not counted again,
unless `again=true` asks for it.

Exit codes: docs/exit_codes.md.
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path

from maintenance.words import read_words
from profiler.command_line import as_command, print_line, print_text
from profiler.config.claims.settings import keys_text, spec_of
from profiler.config.options.reading import FieldReader
from profiler.domain.cards.gpu import KNOWN_GPUS, ROOFLINES
from profiler.domain.claims import By, Claim, Configuration
from profiler.domain.errors import EXIT_OK, UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.step_shape import PhaseWork
from profiler.domain.trials.trial import TrialSpec
from profiler.storage.files.atomic import write_atomically
from profiler.storage.foreign.published import COUNTED, read_published_claims

COLUMNS = (
    "configuration", "gpu", "phase", "flops", "moved_bytes", "to_host_bytes", "from_host_bytes", "seconds",
)  # fmt: skip

KEPT = Path(__file__).parents[1] / "profiler" / "published" / COUNTED

Row = dict[str, str]

_USAGE = """\
python -m maintenance.counted [most=N] [again=true]

Count the floating-point operations and bytes of the steps whose time the claims
compare, and what a card needs for them at least. Each takes up to a minute;
most=N ends after N of them, and the next call goes on.

Examples:
  python -m maintenance.counted
  python -m maintenance.counted most=1
"""


@as_command("counted")
def main(argv: Sequence[str] | None = None) -> int:
    """Count what is missing and write the table."""
    words = sys.argv[1:] if argv is None else list(argv)
    if set(words) & {"-h", "--help"}:
        print_text(_USAGE)
        return EXIT_OK
    values, faults = read_words(words, {"again": False, "most": None})
    reader = FieldReader(values)
    again, most = reader.flag("again"), reader.optional_count("most")
    if faults or reader.faults:
        raise UsageError([*faults, *reader.faults])
    kept = [] if again else _kept()
    known = {row["configuration"] for row in kept}
    wanted = [each for each in counted_configurations(read_published_claims()) if keys_text(each) not in known]
    for configuration in wanted[:most]:
        kept += _rows(keys_text(configuration), spec_of(configuration))
        _write(kept)
        print_line(keys_text(configuration))
    return EXIT_OK


def counted_configurations(claims: Iterable[Claim]) -> list[Configuration]:
    """Return each configuration whose work is compared, once."""
    found = {keys_text(each): each for claim in claims for each in claim.configurations if each.by is By.COUNTED}
    return list(found.values())


def count(spec: TrialSpec) -> tuple[PhaseWork, ...]:
    """Simulate the trial and return the work of its last step."""
    # torch and trl only where something is counted.
    from profiler.simulation.session import Simulation
    from profiler.training.run import run_training

    simulation = Simulation(KNOWN_GPUS[str(spec.gpu)], offloads=spec.activation_offloading, counts=True)
    run_training(spec, BUILTIN_MODELS[spec.model].config, simulation)
    return simulation.recorder.work.last_step() if simulation.recorder.work is not None else ()


def _rows(text: str, spec: TrialSpec) -> list[Row]:
    card = ROOFLINES[str(spec.gpu)]
    return [
        {
            "configuration": text,
            "gpu": str(spec.gpu),
            "phase": work.phase.value,
            "flops": str(work.flops),
            "moved_bytes": str(work.moved_bytes),
            "to_host_bytes": str(work.to_host_bytes),
            "from_host_bytes": str(work.from_host_bytes),
            "seconds": f"{work.seconds(card):.6g}",
        }
        for work in count(spec)
    ]


def _kept() -> list[Row]:
    if not KEPT.is_file():
        return []
    with KEPT.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _write(rows: Sequence[Row]) -> None:
    sink = StringIO()
    writer = csv.DictWriter(sink, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(KEPT, sink.getvalue().encode())


if __name__ == "__main__":
    sys.exit(main())
