"""The error that ended a script: its traceback without this program's frames, and the line of the script."""

import linecache
import traceback
from pathlib import Path
from types import TracebackType

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
