"""The out-of-memory errors of a log, behind the prefixes of launchers and broken over lines.

Prefixes: ``[rank0]:`` of torchrun, ``(WorkerDict pid=17, ip=...)`` of Ray and so of verl, ``(VllmWorker rank=0 pid=17)
ERROR 03-13 09:00:43 [core.py:330]`` of vLLM (0.6 to 0.11), ``0: `` of srun and ``[1,0]<stderr>:`` of mpirun.
"""

import re
from dataclasses import dataclass

from profiler.allocator.refusals.oom_message import OomMessage, read_oom_message

_BEGIN = re.compile(r"(?:CUDA|HIP) out of memory\. Tried to allocate ")
_END = re.compile(
    r"reserved by PyTorch but unallocated|reserved in total by PyTorch|cached\)|inactive\)".replace(" ", "")
)
"""The last words of a message that matter, without white space."""
_EARLIER = re.compile(rf"{_BEGIN.pattern}[\d.]+ \w+ \(GPU")
"""How a message of torch 2.0 and earlier begins."""
_BEGIN_SQUEEZED = re.compile(_BEGIN.pattern.replace(" ", ""))
_VARIABLE = re.compile(r"PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_PROCESS_MARK = r"\[rank\s?\d+\]:?|\([^()\n]*pid=\d+[^()\n]*\)|^\d+: |^\[\d+,\d+\]<std\w+>:?"
_MARK = re.compile(_PROCESS_MARK)
_LEVEL = r"(?:CRITICAL|ERROR|WARNING|INFO) [\d-]+ [\d:.,]+ \[[^\]\n]*\]"
_PREFIX = re.compile(rf"^(?:\s|[│|]|{_PROCESS_MARK}|{_LEVEL})*")
_FRAME = re.compile(
    r"""File\ "[^"\n]*",\ line\ \d+,\ in\ (\w+)    # Python
    |\bFile\ [^\s"]+:\d+,\ in\ (?:\w+\.)*(\w+)\(   # IPython
    |\S\.py:\d+\ in\ (\w+)                         # rich""",
    re.VERBOSE,
)
_TRACEBACK = "Traceback (most recent call last)"

_LONGEST_MESSAGE = 16_384
"""Most characters of a message: that of a card with 200 processes has some 10,000."""
_MOST_LINES = 40
"""Most lines that a message is broken into."""
_LONGEST_TRACEBACK = 1_000_000
"""Most characters in front of a message that are searched for its traceback."""


@dataclass(frozen=True, kw_only=True)
class OomReport:
    """The out-of-memory errors of a log."""

    message: OomMessage
    """The first one: later ones are often its consequence."""
    count: int
    """How many there are."""
    has_expandable_segments: bool
    """Whether the torch of the message has them, as from 2.1 on, where the wording changed."""
    variable: str
    """Environment variable of the allocator that the message names; empty if it names none, as before torch 1.10 or
    where it is cut."""
    functions: tuple[str, ...]
    """Names of the functions of the traceback in front of the first one, the outermost first."""


def find_oom(log: str) -> OomReport | None:
    """Return the first out-of-memory message of a log; None if there is none with sizes."""
    text = _COLOUR.sub("", log) if "\x1b" in log else log
    first = _BEGIN.search(text)
    if first is None:
        return None
    return OomReport(
        message=_message(text, first.start()),
        count=sum(1 for _ in _BEGIN.finditer(text)),
        has_expandable_segments=_EARLIER.match(text, first.start()) is None,
        variable=_variable(text, first.start()),
        functions=_functions(text, first.start()),
    )


def _message(text: str, start: int) -> OomMessage:
    """Return the message that begins at `start`: one line, or several where a screen or a page broke it."""
    first, *others = text[start : start + _LONGEST_MESSAGE].split("\n", _MOST_LINES)
    found = _squeezed(first)
    for line in others[: _MOST_LINES - 1]:
        own = _PREFIX.sub("", line).rstrip(" │|\r")
        if _END.search(found) or not own or _BEGIN.search(own) or _TRACEBACK in own or _FRAME.search(own):
            break
        found += _squeezed(own)
    end = _END.search(found)
    return read_oom_message(found if end is None else found[: end.end()])


def _variable(text: str, start: int) -> str:
    """Return the name of the allocator's variable behind the sizes: torch 2.9 renamed it."""
    whole = "".join(text[start : start + _LONGEST_MESSAGE].split())
    second = _BEGIN_SQUEEZED.search(whole, 1)
    found = _VARIABLE.search(whole, 0, second.start() if second is not None else len(whole))
    return found[0] if found is not None else ""


def _squeezed(line: str) -> str:
    return "".join(line.rstrip(" │|\r").split())


def _functions(text: str, start: int) -> tuple[str, ...]:
    """Return the functions of the last traceback before `start`, of the same process where lines say whose they are."""
    before = text[max(0, start - _LONGEST_TRACEBACK) : start]
    mark = _MARK.search(before.rpartition("\n")[2])
    if mark is not None:
        before = "\n".join(line for line in before.split("\n") if mark[0] in line)
    traceback = before[max(0, before.rfind(_TRACEBACK)) :]
    return tuple(next(name for name in names if name) for names in _FRAME.findall(traceback))
