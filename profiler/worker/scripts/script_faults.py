"""The error that ended a script: its traceback, and one sentence that says what is missing."""

import argparse
import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from profiler.domain.errors import ProfilerError

_LONGEST_LINE = 100


def print_error_of_script(error: BaseException, script: Path) -> None:
    """Print the traceback as Python would have, from the script's first frame on."""
    traceback.print_exception(error.with_traceback(_from_script(error.__traceback__, script)))


def last_line_in(error: BaseException, script: Path) -> str:
    """Return the innermost line of the script in a traceback, ``"train.py:41 (loss.backward())"``; empty if none."""
    number = 0
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == str(script):
            number = line
    if not number:
        return ""
    text = linecache.getline(str(script), number).strip()
    shown = text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}..."
    return f"{script.name}:{number} ({shown})"


def _from_script(trace: TracebackType | None, script: Path) -> TracebackType | None:
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename != str(script):
        found = found.tb_next
    return found or trace


_ANOTHER_PYTHON = "name another python= that has it"
_WRITTEN_FOR_ANOTHER = f"the script was written for another version; {_ANOTHER_PYTHON}"
_MISSING_LIBRARY = re.compile(r"requires the (\S+) (?:library|package)")
_MISSING_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_UNEXPECTED_ARGUMENT = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_DOWNLOAD = re.compile(r"(https?://[^\s,;'\"]+)[^\n]*\n?[^\n]*urlopen error")
"""An address in the text of an error about a failed download, as torchvision's has."""
_NETWORK_ERRORS = ("ConnectionError", "ConnectError", "ConnectTimeout", "URLError", "LocalEntryNotFoundError",
    "OfflineModeIsEnabled", "NameResolutionError", "MaxRetryError")  # fmt: skip


def sentence_of(error: BaseException) -> str:
    """Return what ended the script: the package, version, file or address that is missing, or the error itself."""
    for each in _chain(error):
        found = _missing(each)
        if found:
            return found
    kind = "" if isinstance(error, ProfilerError) else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}".split())


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, then the errors that it came from; one that was handled is no reason."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _missing(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return _missing_package(error)
    if isinstance(error, TypeError):
        return _unexpected_argument(error)
    if isinstance(error, AttributeError):
        return _missing_attribute(error)
    if isinstance(error, argparse.ArgumentError) and "conflicting option" in str(error):
        return f"a library has the option {error.argument_name} too: {_WRITTEN_FOR_ANOTHER}"
    if isinstance(error, AssertionError) and not str(error):
        return _failed_assertion(error)
    if any(kind.__name__ in _NETWORK_ERRORS for kind in type(error).__mro__):
        return f"{_address(error)} is not on this machine, and the network does not answer"
    if (address := _DOWNLOAD.search(str(error))) is not None:
        return f"{address[1]} is not on this machine, and the network does not answer"
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return _missing_file(error.filename)
    return ""


def _missing_package(error: ImportError) -> str:
    library = _MISSING_LIBRARY.search(str(error))
    if library is not None:
        return _without_package(library[1])
    name = _MISSING_NAME.search(str(error))
    if name is not None:
        return _another_version(name[2].partition(".")[0], f"no {name[1]} in {name[2]}")
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    package = error.name.partition(".")[0]
    if package == error.name or package not in sys.modules:
        return _without_package(package)
    return _another_version(package, f"no module {error.name}")


def _without_package(package: str) -> str:
    return f"the package {package} is missing in {sys.executable}: install it there, or {_ANOTHER_PYTHON}"


def _another_version(package: str, lacks: str) -> str:
    number = _version(package)
    if number is None:
        return ""
    return f"{package} {number} has {lacks}: {_WRITTEN_FOR_ANOTHER}"


def _missing_attribute(error: AttributeError) -> str:
    """Return the sentence for a name that a module or class of a library lacks, as after a change of version."""
    owner, name = error.obj, error.name
    if not name or owner is None:
        return ""
    if isinstance(owner, ModuleType):
        return _another_version(owner.__name__.partition(".")[0], f"no {name} in {owner.__name__}")
    kind = owner if isinstance(owner, type) else type(owner)
    package = _package(kind)
    # A tensor without an attribute is a mistake of the script, and seldom a matter of torch's version.
    return "" if package == "torch" else _another_version(package, f"no {name} in {kind.__name__}")


def _failed_assertion(error: AssertionError) -> str:
    """Return the assertion itself, which has no message: it says what the script misses."""
    frame, number = list(traceback.walk_tb(error.__traceback__))[-1]
    name = frame.f_code.co_filename
    text = linecache.getline(name, number).strip()
    return f"AssertionError: {text} ({Path(name).name}:{number})" if text else ""


def _unexpected_argument(error: TypeError) -> str:
    """Return the sentence for an argument that a class of a library does not take, as after a change of version."""
    found = _UNEXPECTED_ARGUMENT.search(str(error))
    if found is None:
        return ""
    package = next((_package(each) for each in _classes(error) if each.__name__ == found[1]), "")
    return _another_version(package, f"no argument {found[2]} of {found[1]}") if package else ""


def _classes(error: BaseException) -> Iterator[type]:
    """Yield the classes that the frames of an error know by a name, or by one of a class that is made from them."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in (*frame.f_locals.values(), *frame.f_globals.values()):
            if isinstance(value, type):
                yield from value.__mro__


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _missing_file(name: Any) -> str:
    path = Path(name if isinstance(name, str) else str(name))
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    return f"the file {path} is missing{where}: the script reads it"


def _address(error: BaseException) -> str:
    """Return what was asked for: a file of a repository on the hub, or an address."""
    request = getattr(error, "request", None)
    found = getattr(request, "url", None)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        names = frame.f_locals
        repository, file = names.get("repo_id"), names.get("filename")
        if isinstance(repository, str):
            return f"{file} of {repository} on the hub" if isinstance(file, str) else f"{repository} on the hub"
        url = names.get("url")
        found = found or getattr(url, "full_url", url if isinstance(url, str) else None)
    return str(found) if found else "what the script asks the network for"
