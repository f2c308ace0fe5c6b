"""The text of `python -m profiler.monitor --help`."""

from textwrap import wrap

from profiler.monitor.options import KEYS, Mode

_WIDTH = 80
_INDENT = 24


def usage() -> str:
    """Return the text."""
    return f"""\
python -m profiler.monitor [watch=DURATION] [format=table|json]
python -m profiler.monitor [key=value ...] COMMAND [argument ...]

Without a command: the GPUs of this machine, their memory and load, the processes
on them, allocation retries and failed allocations of profiled ones, and what to
do about a GPU that is more than 90 % full.

{_lines(Mode.GPUS)}
With a command: run it as it is, sample the GPUs, its processes and the memory of
the host until it ends, and leave tables and a page. Signals are passed on, and
its exit code is that of this command. Our keys end at the first word without
"=", or at "--".

{_lines(Mode.COMMAND)}
For the peaks of phases: VramCallback, python -m profiler.run (docs/monitor.md).

Examples:
  python -m profiler.monitor watch=1s
  python -m profiler.monitor format=json
  python -m profiler.monitor accelerate launch train.py --bf16
  python -m profiler.monitor config=grpo.yaml model=qwen2.5-7b python train.py
"""


def _lines(mode: Mode) -> str:
    return "".join(_line(name) for name, key in KEYS.items() if key.mode is mode)


def _line(name: str) -> str:
    key = KEYS[name]
    head = f"  {name}={key.values}"
    lines = wrap(f"{key.meaning} (default: {key.shown})", _WIDTH - _INDENT)
    if len(head) >= _INDENT:
        return "\n".join([head, *(" " * _INDENT + line for line in lines)]) + "\n"
    return "\n".join([head.ljust(_INDENT) + lines[0], *(" " * _INDENT + line for line in lines[1:])]) + "\n"
