"""Read the files that describe a job, and those that they name: YAML, JSON, scripts and notebooks; of TOML the name."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

from profiler.config.files.file_kinds import companion_part, part_of, with_references
from profiler.config.files.foreign_formats import foreign_command, foreign_part, foreign_script, is_of_verl
from profiler.config.files.own_sections import FileKeys, parts_with_own_file
from profiler.config.foreign_text import (
    MOST_JSON_BYTES,
    MOST_SCRIPT_BYTES,
    MOST_YAML_BYTES,
    ForeignTextError,
    parse_json,
    parse_python,
    parse_toml,
    parse_yaml,
)
from profiler.config.launch.lines import SHELL, innermost, training_in, training_of, words_of
from profiler.config.launch.parts import NamedFile, extended, launch_parts, module_text, with_files, with_named_files
from profiler.config.notes import Note
from profiler.config.options.command_words import CONFIG
from profiler.config.scripts.adapters import with_pin
from profiler.config.scripts.declared import Given
from profiler.config.scripts.names import parse_script, training_end
from profiler.config.scripts.own_code import may_set
from profiler.config.scripts.training_script import script_part
from profiler.config.shell.run_script import read_run_script
from profiler.config.trl.argument_values import recipe_by_name
from profiler.config.trl.parts import JobFile
from profiler.config.verl.config import SECTION, flattened
from profiler.config.verl.sources import VerlSource, file_source, script_source
from profiler.domain.errors import Fault, UsageError
from profiler.estimate.command import LAUNCH
from profiler.storage.files.foreign_files import Kind, expanded, kind_of, read_bytes, reason

_WITH_KEYS = {".json": MOST_JSON_BYTES, ".yaml": MOST_YAML_BYTES, ".yml": MOST_YAML_BYTES}
_MOST_BYTES = {**_WITH_KEYS, **dict.fromkeys((".py", *SHELL), MOST_SCRIPT_BYTES)}
"""What is read, by the end of its name, and how much of it."""

_TEXT = "utf-8-sig"
"""UTF-8, with or without the mark with which editors of Windows begin a file."""

_UNKNOWN_FOLDER = re.compile(r"^(?:\$\w+|\$\{[^{}]*\}|\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))/")
"""A folder that only the user's machine knows, before a path."""

_NAMED = re.compile(r"""["']([\w./-]+\.ya?ml)["']""")
"""A file with keys that a script names."""

_REQUIREMENTS = ("requirements.txt", "pyproject.toml", "environment.yml", "environment.yaml")
"""Files that say which releases a project is installed with; the first that is there counts."""

_MOST_ABOVE = 4
"""Folders above a script in which a path is looked for: scripts are started from the root of a repository."""


class NamedFiles:
    """The files that one script or command names."""

    def __init__(self, folder: Path, given: Sequence[str] = ()) -> None:
        """Look in `folder`, above it, and among the files that the user gives."""
        self._folder, self.given = folder, given
        self.read: list[str] = []
        """Those of `given` that were read."""

    def __call__(self, name: str) -> NamedFile | None:
        """Return the file of a name; None if it is not there, or is of a kind that is not read.

        Raises:
            UsageError: It is there and cannot be read.
        """
        path = self._found(_UNKNOWN_FOLDER.sub("", name))
        if path is None:
            return None
        try:
            content = read_bytes(path, most_bytes=_MOST_BYTES[path.suffix])
            if path.suffix not in _WITH_KEYS:
                return NamedFile(name=path.name, content=content.decode(_TEXT))
            values = parse_json(content) if path.suffix == ".json" else parse_yaml(content.decode(_TEXT))
        except OSError as error:
            raise _fault(name, f"cannot be read ({reason(error)})") from error
        except (UnicodeDecodeError, ForeignTextError) as error:
            raise _fault(name, f"is no text ({error})" if isinstance(error, UnicodeError) else str(error)) from error
        if not isinstance(values, dict):
            raise _fault(name, "contains no keys with values")
        return NamedFile(name=path.name, content=values)

    def _found(self, name: str) -> Path | None:
        if Path(name).suffix not in _MOST_BYTES:
            return None
        for given in self.given:
            if Path(given).name == Path(name).name:
                self.read.append(given)
                return Path(given)
        return next((path for path in self._places(name) if _is_file(path)), None)

    def _places(self, name: str) -> Iterator[Path]:
        """Return where a file may be: by its path from each folder, by the end of one, and next to the script."""
        folders = [self._folder, *self._folder.resolve().parents[:_MOST_ABOVE]]
        yield from (folder / name for folder in folders)
        parts = Path(name).parts if Path(name).is_absolute() else ()  # another machine's, below its repository
        yield from (folder.joinpath(*parts[start:]) for start in range(1, len(parts)) for folder in folders)
        yield self._folder / Path(name).name


def _is_file(path: Path) -> bool:
    try:
        return kind_of(path) is Kind.FILE
    except OSError:
        return False


def _fault(name: str, problem: str) -> UsageError:
    return UsageError([Fault(key=CONFIG, found=name, problem=problem)])


VERL, VERL_MEGATRON = "verl", "verl-megatron"
"""Values of `config` that name verl's own configurations, `ppo_trainer` and `ppo_megatron_trainer`."""

_MOST_CONFIG_BYTES = {".json": MOST_JSON_BYTES, ".ipynb": MOST_JSON_BYTES, ".py": MOST_SCRIPT_BYTES}


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """What one file says: parts of a job of trl, or a configuration of verl."""

    path: str
    parts: tuple[JobFile, ...] = ()
    verl: VerlSource | None = None
    read: tuple[str, ...] = ()
    """Other files of the user that it names, and that are part of it."""


def pinned(found: ConfigFile) -> ConfigFile:
    """Return what a file says, with the release of trl that a file of requirements next to it asks for."""
    for name in _REQUIREMENTS if found.parts else ():
        with suppress(OSError, UnicodeDecodeError):
            text = read_bytes(expanded(found.path).parent / name, most_bytes=MOST_YAML_BYTES).decode(_TEXT)
            return replace(found, parts=tuple(with_pin(part, text, name) for part in found.parts))
    return found


def load_config(path: str, others: Sequence[str] = (), trainer: str = "") -> ConfigFile:
    """Return what the file `path` says; `VERL` is verl's own default configuration.

    Args:
        path: The file.
        others: Further files of the user, which it may name.
        trainer: The recipe that counts in a script of several.

    Raises:
        UsageError: There is no such file, or it describes no job.
    """
    if path in (VERL, VERL_MEGATRON):
        return ConfigFile(path=path, verl=VerlSource(megatron=path == VERL_MEGATRON))
    try:
        file = expanded(path)
        text = read_bytes(file, most_bytes=_MOST_CONFIG_BYTES.get(file.suffix, MOST_YAML_BYTES))
        if file.suffix == ".py":
            read = partial(script_part, file.name, _python(text.decode(_TEXT)))
            return _with_own_file(path, read, NamedFiles(file.parent, others), trainer, text.decode(_TEXT))
        if file.suffix in SHELL or text.startswith(b"#!"):
            return _run_script(path, file, text.decode(_TEXT), others, trainer)
        values = _parsed(file.suffix, text)
    except OSError as error:
        raise _fault(path, f"cannot be read ({reason(error)})") from error
    except UnicodeDecodeError as error:
        kind = {".py": "Python", ".toml": "TOML", **dict.fromkeys(SHELL, "text")}.get(file.suffix, "YAML")
        raise _fault(path, f"is not valid {kind} ({error})") from error
    except ForeignTextError as error:
        raise _fault(path, str(error)) from error
    if not isinstance(values, Mapping):
        raise _fault(path, "contains no keys with values")
    if file.suffix == ".ipynb":
        cells = partial(_notebook, path, file.name, values)
        return _with_own_file(path, cells, NamedFiles(file.parent, others), trainer)
    if SECTION in values and file.suffix != ".toml":
        return ConfigFile(path=path, verl=file_source(flattened(values), name=file.stem))
    files = NamedFiles(file.parent, others)
    values = with_files(values, files)
    foreign = foreign_part(file.name, values)
    if foreign is None and file.suffix == ".toml":
        raise _fault(path, "is TOML, and no program whose files are read has such")
    part = _of_its_name(part_of(file.name, values), file) if foreign is None else foreign
    return ConfigFile(path=path, parts=_sound((part,)), read=tuple(files.read))


def _of_its_name(part: JobFile, file: Path) -> JobFile:
    """Return what a file of trl says, with the trainer that its name or folder says where no key does."""
    if part.recipe is not None or not any(part.values.get(key) for key in ("model_name_or_path", "model_name")):
        return part
    recipe, faults = recipe_by_name(file.stem, file.absolute().parent.name, part.values)
    return replace(part, recipe=recipe, faults=(*part.faults, *faults))


def _sound(parts: tuple[JobFile, ...]) -> tuple[JobFile, ...]:
    """Return parts of which no file is refused as a whole; raise a `UsageError` if one is."""
    refused = [fault for part in parts for fault in part.faults if fault.key == CONFIG]
    if refused:
        raise UsageError(refused)
    return parts


def load_command(text: str, others: Sequence[str] = (), trainer: str = "") -> ConfigFile:
    """Return what a command that trains says.

    Args:
        text: Its words, quoted as a shell reads them.
        others: Files of the user that it may name.
        trainer: The recipe that counts in a script of several.

    Raises:
        UsageError: It starts no training that is known, or a file that it names cannot be read.
    """
    if (foreign := foreign_command(text)) is not None:
        raise UsageError([foreign])
    try:
        found = replace(training_of(words_of(text)), trainer=trainer)
        files = NamedFiles(Path(), others)
        return ConfigFile(path=text, parts=_sound(launch_parts("the command", found, files)), read=tuple(files.read))
    except ForeignTextError as error:
        raise UsageError([Fault(key=LAUNCH, found=text, problem=str(error))]) from error


def _run_script(path: str, file: Path, text: str, others: Sequence[str], trainer: str) -> ConfigFile:
    """Return what a shell script, or one that it runs, passes to verl or to a training with trl.

    Raises:
        UsageError: It is of another program.
        ForeignTextError: It is of verl or trl and cannot be read.
    """
    files = NamedFiles(file.parent, others)
    read = partial(module_text, files)
    name, text, called = innermost(file.name, text, read)
    foreign = foreign_script(name, text)
    if foreign is not None:
        raise UsageError([foreign])
    if is_of_verl(text):
        return ConfigFile(path=path, verl=script_source(read_run_script(text, called, read), name=name))
    parts = launch_parts(name, replace(training_in(text, called, read), trainer=trainer), files)
    return ConfigFile(path=path, parts=_sound(parts), read=tuple(files.read))


def _with_own_file(
    path: str, read: Callable[[Given], JobFile], files: NamedFiles, trainer: str, text: str = ""
) -> ConfigFile:
    """Return what a script says, with the values that it takes from one of the user's files or from one that it names.

    Args:
        path: The script.
        read: Reads it.
        files: The user's files, and those near the script.
        trainer: The recipe that counts in a script of several.
        text: The text of the script, which may name a file.

    Raises:
        UsageError: A notebook is refused as a whole.
        ForeignTextError: A script cannot be read.
    """
    module = partial(module_text, files)
    for name in (*files.given, *dict.fromkeys(_NAMED.findall(text))):
        values = _own_values(name, files)
        if values is None:
            continue
        keys = FileKeys(values, read={})
        made = read(Given(own_file=keys, trainer=trainer, module=module))
        if parts := parts_with_own_file(made, Path(name).name, values, keys):
            return ConfigFile(path=path, parts=tuple(parts), read=(name,))
    parts, own = [read(Given(trainer=trainer, module=module))], []
    for name in files.given:
        values = _own_values(name, files)
        parsed = parts[0] if values is None else read(Given(trainer=trainer, recipe=values, module=module))
        if values is not None and parsed.values != parts[0].values:
            # Its parser fills classes of trl, and others of its own, with the file: what it does with them counts.
            parts, own = [parsed, replace(part_of(Path(name).name, values), values={}, unknown=(), faults=())], [name]
            break
    files.read.clear()
    parts[0] = with_named_files(parts[0], files)
    return ConfigFile(path=path, parts=tuple(parts), read=(*own, *files.read))


def _own_values(name: str, files: NamedFiles) -> Mapping[str, object] | None:
    """Return the keys of a user's own file; None for one of another kind, or that cannot be read."""
    try:
        found = files(name) if Path(name).suffix != ".py" else None
    except UsageError:
        return None  # said where the file itself is read
    values = found.content if found is not None else None
    if not isinstance(values, Mapping) or SECTION in values or companion_part(name, values) is not None:
        return None
    return (
        None
        if foreign_part(Path(name).name, values) is not None
        else with_references(extended(values, lambda each: files(str(Path(name).parent / each))))
    )


def _notebook(path: str, name: str, values: Mapping[str, object], given: Given) -> JobFile:
    """Return what the cells of a notebook say.

    Raises:
        UsageError: It is of another program, has no code, or no valid Python.
    """
    try:
        return _sound((notebook_part(name, values, given),))[0]
    except ForeignTextError as error:
        raise _fault(path, str(error)) from error


def _parsed(suffix: str, text: bytes) -> object:
    """Return the value of a YAML, JSON or TOML text, or of a notebook.

    Raises:
        UnicodeDecodeError: It is no text.
        ForeignTextError: It is not valid, or exceeds a limit.
    """
    if suffix in (".json", ".ipynb"):
        return parse_json(text)
    return parse_toml(text.decode(_TEXT)) if suffix == ".toml" else parse_yaml(text.decode(_TEXT))


_MAGIC = re.compile(r"^(?P<indent>[ \t]*)(?:[!%?].*|[A-Za-z_][\w.]*\?{1,2}[ \t]*)$", re.MULTILINE)
"""A line for the shell or for IPython."""

_MAGIC_VALUE = re.compile(r"^([ \t]*[\w, ]+=[ \t]*)[!%].*$", re.MULTILINE)
"""A value that the shell or IPython returns."""

_CELL_MAGIC = re.compile(r"\A\s*%%(?!time|capture)")
"""The first line of a cell that is no Python."""

_CONTINUES = re.compile(r"^([ \t]*)([!%].*)\\\n", re.MULTILINE)


def notebook_part(name: str, values: Mapping[str, object], given: Given | None = None) -> JobFile:
    """Return what the cells with code of a notebook say.

    Args:
        name: The notebook, for sentences.
        values: Its content. Without code, or with code that is not valid, it raises a `ForeignTextError`.
        given: What is given with it; None if nothing is.
    """
    cells = list(_code(values))
    numbers, texts = [number for number, _ in cells], [_python(text) for _, text in cells]
    if not any(text.strip() for text in texts):
        raise ForeignTextError("is a notebook without code")
    starts = list(accumulate((text.count("\n") + 1 for text in texts), initial=0))
    broken = {place: error for place, text in enumerate(texts) if (error := _invalid(text)) is not None}

    def where(line: int) -> str:
        place = max(bisect_right(starts, line - 1) - 1, 0)
        return f"line {line - starts[place]} of cell {numbers[place]} of {name}"

    rest = "\n".join("\n" * text.count("\n") if place in broken else text for place, text in enumerate(texts))
    end = training_end(tree := parse_script(rest))
    for place, error in broken.items():
        if (end is None or starts[place] < end) and may_set(texts[place], tree):
            raise ForeignTextError(f"has a cell {numbers[place]} on which its training may depend, and which {error}")
    passed = [Note(key="", text=f"no effect of cell {numbers[place]}, which {broken[place]}") for place in broken]
    part = script_part(name, rest, given, where=where)
    return replace(part, notes=(*part.notes, *passed))


def _invalid(text: str) -> str | None:
    """Return what is wrong with a text as Python."""
    try:
        parse_python(text)
    except ForeignTextError as error:
        return str(error)
    return None


def _python(text: str) -> str:
    """Return the code of a cell or a script with as many lines, of which those for IPython are passed."""
    if _CELL_MAGIC.match(text):
        return "\n" * text.count("\n")
    if _invalid(text) is None:
        return text
    while _CONTINUES.search(text):
        text = _CONTINUES.sub(lambda found: f"{found[1]}{found[2].rstrip()}; \n{found[1]}!", text, count=1)
    text = _MAGIC.sub(lambda found: f"{found['indent']}pass", text)
    return _MAGIC_VALUE.sub(lambda found: f"{found[1]}object()", text)


def _code(values: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """Return the number of each cell with code, from 1, and its text; a line is a text or several."""
    cells = values.get("cells")
    for number, cell in enumerate(cells if isinstance(cells, list) else [], 1):
        source = cell.get("source") if isinstance(cell, Mapping) and cell.get("cell_type") == "code" else None
        if isinstance(source, str):
            yield number, source
        elif isinstance(source, list):
            yield number, "".join(line for line in source if isinstance(line, str))
