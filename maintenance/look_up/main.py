"""`python -m maintenance.look_up repositories=FOLDER`: what claims need from libraries, and an experiment on the CPU.

The result is `profiler/published/looked_up.csv`. FOLDER has a git directory per repository, as OWNER+NAME/repo.

Exit codes: docs/exit_codes.md.
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path

from maintenance.look_up import composed, gradients, source_files
from maintenance.words import read_words
from profiler.command_line import as_command, print_line, print_text
from profiler.config.options.reading import FieldReader
from profiler.domain.claims import Claim, ExperimentLook, Looked, SourceLook
from profiler.domain.errors import EXIT_OK, Fault, UsageError
from profiler.storage.files.atomic import write_atomically
from profiler.storage.foreign.published import LOOKED_UP, read_published_claims

COLUMNS = ("claim", "when", "is_so", "where", "found")

KEPT = Path(__file__).parents[2] / "profiler" / "published" / LOOKED_UP

_USAGE = """\
python -m maintenance.look_up repositories=FOLDER

Look up what the claims of public texts need from the sources of libraries, and
run their experiment on the CPU. FOLDER has a git directory per repository, as
OWNER+NAME/repo.

Examples:
  python -m maintenance.look_up repositories=../mirrors
"""


@as_command("look-up")
def main(argv: Sequence[str] | None = None) -> int:
    """Look everything up and write the table."""
    words = sys.argv[1:] if argv is None else list(argv)
    if set(words) & {"-h", "--help"}:
        print_text(_USAGE)
        return EXIT_OK
    values, faults = read_words(words, {"repositories": None})
    reader = FieldReader(values)
    folder = Path(reader.text("repositories", "a folder of git directories"))
    if faults or reader.faults:
        raise UsageError([*faults, *reader.faults])
    rows = looked_up(read_published_claims(), folder)
    sink = StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerows([COLUMNS, *rows])
    write_atomically(KEPT, sink.getvalue().encode())
    print_line(f"{len(rows)} look-ups: {KEPT.name}")
    return EXIT_OK


def looked_up(claims: Iterable[Claim], repositories: Path) -> list[tuple[str, str, str, str, str]]:
    """Return one row per look-up.

    Raises:
        UsageError: A repository, a version or a file is missing; carries every fault.
    """
    rows, faults = [], []
    for claim in claims:
        for setting in claim.settings:
            if not isinstance(setting, Looked):
                continue
            try:
                (is_so, found), where = _look(setting, repositories)
            except LookupError as error:
                faults.append(Fault(key=claim.id, found=setting.when, problem=f"cannot be looked up ({error})"))
                continue
            print_line(f"{claim.id}: {setting.when}: {is_so}")
            rows.append((claim.id, setting.when, str(is_so).lower(), where, found))
    if faults:
        raise UsageError(faults)
    return rows


def _look(setting: Looked, repositories: Path) -> tuple[tuple[bool, str], str]:
    look = setting.look
    if isinstance(look, ExperimentLook):
        return gradients.look(look.loss), "a model of 119,360 parameters in float32"
    git = repositories / look.repository.replace("/", "+") / "repo"
    commit = source_files.run_git(git, "rev-parse", "--short=12", f"{look.version}^{{commit}}").strip()
    where = f"{look.repository} {look.version} ({commit})"
    if isinstance(look, SourceLook):
        return source_files.look(git, look), where
    return composed.look(git, look), where
