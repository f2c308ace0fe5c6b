"""Reader of torch's out-of-memory messages: one of them, and those of a whole log.

Reader of torch's out-of-memory message. Its sizes are rounded to two digits, as torch prints them.

Sources of the wordings: `CUDACachingAllocator.cpp`, where torch.OutOfMemoryError is raised, in torch 1.13 to 2.13
("capacty" in 2.1), and logs of torch 1.1 ("cached", which is what is reserved and not allocated) and 1.2 ("inactive").

The out-of-memory errors of a log, behind the prefixes of launchers and broken over lines.

Prefixes: ``[rank0]:`` of torchrun, ``(WorkerDict pid=17, ip=...)`` of Ray and so of verl, ``(VllmWorker rank=0 pid=17)
ERROR 03-13 09:00:43 [core.py:330]`` of vLLM (0.6 to 0.11), ``0: `` of srun and ``[1,0]<stderr>:`` of mpirun.
"""

import re
from dataclasses import dataclass

from profiler.domain.memory import GIB, KIB, MIB

_SIZE = r"(?<![0-9])(?<![0-9][.,])([0-9]{1,15}(?:\.[0-9]{1,6})?) (GiB|MiB|KiB|bytes)"
_UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "bytes": 1}

_TOO_LARGE = "more than 1EB"
"""In place of a size: a request that torch does not pass on to the driver."""


@dataclass(frozen=True, kw_only=True)
class OomMessage:
    """The sizes in a message; None for those that it does not have."""

    requested_bytes: int | None = None
    """Size of the allocator's request to the driver."""
    requested_text: str = ""
    """The same as torch printed it, also where that is no size."""
    total_bytes: int | None = None
    """Memory of the card."""
    free_bytes: int | None = None
    in_use_bytes: int | None = None
    """Memory of this process, with that of CUDA. torch prints it only if NVML lists the process by the number that it
    has itself, which is not so in most containers."""
    processes_bytes: tuple[int, ...] = ()
    """Memory of each process that NVML lists by another number; one of them may be this one."""
    allowed_bytes: int | None = None
    """Limit that the program set itself."""
    private_bytes: int | None = None
    """Allocated in private pools, such as those of CUDA graphs."""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None

    @property
    def unallocated_bytes(self) -> int | None:
        """Cached memory that no tensor uses."""
        if self.allocated_bytes is None or self.reserved_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.allocated_bytes)


def read_oom_message(message: str) -> OomMessage:
    """Read the sizes in torch's message, in any of its wordings. A size that cannot be parsed is not read.

    White space does not count, so that a message may be broken over lines anywhere.
    """
    text = "".join(message.split())
    allocated = _size(text, rf"Of the allocated memory {_SIZE} is allocated by PyTorch", rf"{_SIZE} already allocated")
    tried = _search(rf"Tried to allocate {_SIZE}", text)
    is_too_large = _search(f"Tried to allocate {_TOO_LARGE}", text) is not None
    return OomMessage(
        requested_bytes=None if tried is None else _bytes(tried[1], tried[2]),
        requested_text=f"{tried[1]} {tried[2]}" if tried is not None else _TOO_LARGE if is_too_large else "",
        total_bytes=_size(text, rf"total capaci?ty of {_SIZE}", rf"{_SIZE} total capacity"),
        free_bytes=_size(text, rf"of which {_SIZE} is free", rf"; {_SIZE} free"),
        in_use_bytes=_size(text, rf"this process has {_SIZE} memory in use"),
        processes_bytes=tuple(_bytes(*match) for match in _PROCESS.findall(text)),
        allowed_bytes=_size(text, rf"{_SIZE} allowed;"),
        private_bytes=_size(text, rf"{_SIZE} allocated in private pools", rf"{_SIZE} cached in private pools"),
        allocated_bytes=allocated,
        reserved_bytes=_reserved(text, allocated),
    )


def _reserved(text: str, allocated: int | None) -> int | None:
    """Return what PyTorch took from the driver: as it is, or what is allocated and what is not."""
    whole = _size(text, rf"{_SIZE} reserved in total by PyTorch")
    unused = _size(text, rf"{_SIZE} is reserved by PyTorch but unallocated", rf"; {_SIZE} cached[;)]")
    if whole is not None or allocated is None or unused is None:
        return whole
    return allocated + unused + (_size(text, rf"; {_SIZE} inactive\)") or 0)


def _size(text: str, *patterns: str) -> int | None:
    """Return the size that the first pattern finds that is in a text without white space."""
    found = next((found for pattern in patterns if (found := _search(pattern, text)) is not None), None)
    return None if found is None else _bytes(found[1], found[2])


def _search(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(pattern.replace(" ", ""), text)


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


_PROCESS = re.compile(rf"Process \d+ has {_SIZE} memory in use".replace(" ", ""))


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
