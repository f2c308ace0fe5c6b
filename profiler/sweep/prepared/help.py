"""The text of `python -m profiler.sweep --help`."""

from collections.abc import Sequence
from textwrap import fill

from profiler.config.options.run_options import run_options_help, trial_keys_help
from profiler.config.trials.specification import AUTO

_WIDTH = 80


def usage(grids: Sequence[str]) -> str:
    """Return the text, with the names of the grids."""
    listed = fill(", ".join(grids), _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return f"""\
python -m profiler.sweep +grid=NAME [key=value ...] [key=a,b ...]

Run the trials of a grid, each in a process of its own, and write a report to
<results_dir>/NAME/. Several values of a key, separated by commas, give one trial
per combination. dry_run=true lists the trials with their estimates.

Grids:
{listed}

Keys of a trial [default]:
{trial_keys_help(given=AUTO)}
Run options (docs/run_options.md) [default]:
{run_options_help()}
python=ENV1,ENV2 runs the trials in each environment and compares them;
max_increase=2% then ends with exit code 4 if a peak grew by more.

--cfg job shows the composed configuration, --info what Hydra read, -cd DIR adds
a folder of grids. Exit codes: docs/exit_codes.md.

Examples:
  python -m profiler.sweep +grid=lora_vs_full
  python -m profiler.sweep +grid=lora_vs_full gpu=rtx-4090-24gb,a100-40gb
  python -m profiler.sweep +grid=completion_length dry_run=true
  python -m profiler.sweep +grid=guard python=venv-old,venv-new max_increase=2%
"""
