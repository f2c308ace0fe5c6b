"""Imports the modules that an environment variable names, in the warmed process.

An import that raises is ignored here, because it would end the warmed process. Each worker then reports the reason.
"""

import importlib
import os
from contextlib import suppress

VARIABLE = "GRPO_VRAM_PROFILER_PRELOAD"
"""Names of modules, separated by commas."""

for _name in filter(None, os.environ.get(VARIABLE, "").split(",")):
    with suppress(Exception):
        importlib.import_module(_name)
