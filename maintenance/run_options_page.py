"""The page docs/run_options.md, made from the declarations."""

from profiler.config.option import Option
from profiler.config.run_options import RUN_OPTIONS
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import markdown_table

_HEAD = """\
# Run options

How a sweep runs its trials: `python -m profiler.sweep +grid=NAME timeout_s=600 jobs=2`. Run options do not change what
a trial is, and not the name under which it is stored. This page is made from `profiler/config/run_options.py` by
`python tests/config/test_run_options.py`.

"""


def run_options_page() -> str:
    """Return the whole page."""
    rows = [
        (f"`{name}`", f"`{option.default_text}`", option.unit, option.allowed, _meaning(option))
        for name, option in RUN_OPTIONS.items()
    ]
    return _HEAD + markdown_table(("key", "default", "unit", "allowed", "meaning"), rows, align=Align.LEFT) + "\n"


def _meaning(option: Option) -> str:
    return option.meaning + (f"; null: {option.null}" if option.null else "")
