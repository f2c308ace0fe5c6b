"""`python -m profiler.replay SNAPSHOT [key=value ...]`: replay a recorded memory history.

Exit codes: docs/exit_codes.md. "It would not have fitted" is an answer. Unreadable snapshots are reported; the exit
code is 2 only if none could be read.
"""

import sys
from collections.abc import Sequence
from pathlib import Path, PurePath

from profiler.allocator.histories.history import read_history
from profiler.allocator.histories.what_if import Answer, Question, answer
from profiler.command_line import as_command, print_error, print_text
from profiler.commands import COMMANDS, FIGURE
from profiler.config.options.option import OutputFormat
from profiler.domain.errors import EXIT_OK, EXIT_USAGE, Fault, UsageError, printable
from profiler.rendering.replay.table import answer_mapping, replay_json, replay_table
from profiler.replay.command import FIGURE_SUFFIXES, Command, ReplayOptions, read_command, usage
from profiler.storage.files.atomic import write_atomically
from profiler.storage.files.foreign_files import Kind, kind_of
from profiler.storage.foreign.recorded_snapshot import load_snapshot, snapshot_files


@as_command("replay")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `argv` (without the program) and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    command = read_command(words)
    if command.wants_help:
        print_text(usage())
        return EXIT_OK
    if command.faults:
        raise UsageError(command.faults)
    if command.options.figure is not None:
        COMMANDS["replay"].uses[FIGURE].check("figure", str(command.options.figure))
    return _replay(command)


def _replay(command: Command) -> int:
    files = [path for each in command.paths for path in _snapshots(each)]
    figures = _figure_paths(command.options.figure, files)
    answered: list[dict[str, object]] = []
    unreadable: dict[str, str] = {}
    for path, figure in zip(files, figures, strict=True):
        try:
            found = _answer(command.options, path)
        except UsageError as error:
            unreadable[str(path)] = _about(path, error)
            print_error(unreadable[str(path)])
            continue
        if figure is not None and found.comparison.is_consistent:
            _draw(figure, path.name, found)
        if command.options.output_format is OutputFormat.TABLE:
            print_text(("\n" if answered else "") + replay_table(path.name, found))
        # Histories are not kept: those of a folder may not fit into memory together.
        answered.append(answer_mapping(str(path), found))
    if command.options.output_format is OutputFormat.JSON:
        print_text(replay_json(answered, unreadable))
    return EXIT_OK if answered else EXIT_USAGE


def _snapshots(path: Path) -> Sequence[Path]:
    """Return the snapshots of a folder; a path that is no folder, which is checked when it is read."""
    try:
        return snapshot_files(path) if kind_of(path) is Kind.FOLDER else (path,)
    except OSError:
        return (path,)


def _answer(options: ReplayOptions, path: Path) -> Answer:
    history = read_history(load_snapshot(path), device=options.device)
    return answer(history, Question(alloc_conf=options.alloc_conf, gpu=options.gpu))


def _about(path: Path, error: UsageError) -> str:
    """Return the faults of a file, with its name in each sentence."""
    return "\n".join(
        fault.sentence() if fault.found == str(path) else f"{printable(str(path))}: {fault.sentence()}"
        for fault in error.faults
    )


def _figure_paths(figure: PurePath | None, files: Sequence[Path]) -> list[Path | None]:
    """Return the path of each file's figure.

    Raises:
        UsageError: The suffix is not supported, or several snapshots have one figure file.
    """
    if figure is None:
        return [None] * len(files)
    path = Path(figure)
    is_file = path.suffix in FIGURE_SUFFIXES
    if is_file and len(files) == 1:
        return [path]
    if is_file:
        problem = f"is one file, and there are {len(files)} snapshots"
        raise UsageError([Fault(key="figure", found=str(path), problem=problem, hint="Name a folder.")])
    if len(files) == 1 and not path.is_dir():
        problem = f"must end in {' or '.join(FIGURE_SUFFIXES)}, or be a folder"
        raise UsageError([Fault(key="figure", found=str(path), problem=problem)])
    found: list[Path | None] = []
    for file in files:
        stem, number = file.name.partition(".")[0], 1
        while path / _figure_name(stem, number) in found:
            number += 1
        found.append(path / _figure_name(stem, number))
    return found


def _figure_name(stem: str, number: int) -> str:
    """Number the figures of files with equal stems, from the second on."""
    return f"{stem}.png" if number == 1 else f"{stem}-{number}.png"


def _draw(path: Path, name: str, found: Answer) -> None:
    # Imported here, because importing matplotlib takes longer than everything else.
    from profiler.rendering.figures.replayed import replay_figure
    from profiler.rendering.figures.theme import as_png, as_svg

    figure = replay_figure(name, found)
    write_atomically(path, as_svg(figure) if path.suffix == ".svg" else as_png(figure))
