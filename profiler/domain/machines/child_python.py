"""How this program starts other Python processes of its own: they find modules where it finds them itself."""

import sys
from pathlib import Path


def safe_path_flags() -> tuple[str, ...]:
    """Return `-P`, unless this process finds modules in the current folder too, as `python -m` does.

    `python -m` and `python -c` look there first. The current folder can be a checkout of somebody else, whose
    ``yaml.py`` a child of the console script would run.
    """
    return () if _finds_in_current_folder() else ("-P",)


def safe_path_variables() -> dict[str, str]:
    """Return the environment variable that does what `safe_path_flags` does, for those whose flags are not ours."""
    return {} if _finds_in_current_folder() else {"PYTHONSAFEPATH": "1"}


def _finds_in_current_folder() -> bool:
    return "" in sys.path or str(Path.cwd()) in sys.path
