"""The text of `python -m profiler.run --help`."""

from textwrap import wrap

from profiler.run.options import KEYS

_WIDTH = 80
_INDENT = 20


def usage() -> str:
    """Return the text."""
    return f"""\
python -m profiler.run [key=value ...] train.py [argument ...]
python -m profiler.run [key=value ...] torchrun [option ...] train.py

Run a PyTorch training script as it is and show its GPU memory by phase:
measured on a GPU, or emulated or simulated without one. Our keys end at the
first word without "=", or at "--"; the words after the script are its own.
torchrun, accelerate launch and deepspeed in front of the script are understood.

{"".join(_line(name) for name in KEYS)}
The results are a table, <results_dir>/scripts/<script>/report.html, parquet
files and records (docs/scripts.md). Exit codes: docs/exit_codes.md.

Examples:
  python -m profiler.run train.py --learning_rate 1e-5
  python -m profiler.run gpu=rtx-4090-24gb steps=2 train.py config/small.py
  python -m profiler.run backend=emulated torchrun --nproc_per_node=8 train.py
  python -m profiler.run snapshot=true breakdown=true train.py
"""


def _line(name: str) -> str:
    key = KEYS[name]
    unit = f" {key.unit}" if key.unit and key.unit not in key.shown else ""
    text = f"{key.meaning} (default: {key.shown}{unit})"
    head = f"  {name}={key.values}"
    lines = wrap(text, _WIDTH - _INDENT)
    if len(head) >= _INDENT:
        return "\n".join([head, *(" " * _INDENT + line for line in lines)]) + "\n"
    return "\n".join([head.ljust(_INDENT) + lines[0], *(" " * _INDENT + line for line in lines[1:])]) + "\n"
