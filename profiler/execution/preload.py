"""Imported by the warmed process alone: it imports the modules that an environment variable names.

Of a module whose import raises, each worker makes a failure with the reason; here it would end the warmed process.
"""

import importlib
import os
from contextlib import suppress

VARIABLE = "GRPO_VRAM_PROFILER_PRELOAD"
"""Names of modules, separated by commas."""

for _name in filter(None, os.environ.get(VARIABLE, "").split(",")):
    with suppress(Exception):
        importlib.import_module(_name)
