"""The process of a script. Python runs this file by its path, in an environment that need not have the profiler.

PYTHON profiler/worker/scripts/script_process.py JOB
"""

import importlib.util
import json
import sys
from pathlib import Path

_PROFILER = Path(__file__).resolve().parents[2]


def main(job_file: str) -> int:
    """Run the job in the file, and return the exit code."""
    _find_profiler()
    from profiler.domain.runs.other_runs import ScriptJob
    from profiler.storage.files.typed_json import from_json
    from profiler.worker.scripts.script import run_script_job

    return run_script_job(from_json(ScriptJob, json.loads(Path(job_file).read_text())))


def _find_profiler() -> None:
    """Make the package `profiler` of this file importable, and nothing else of the environment that it is in."""
    if "profiler" in sys.modules:  # an emulated process has it already
        return
    spec = importlib.util.spec_from_file_location(
        "profiler", _PROFILER / "__init__.py", submodule_search_locations=[str(_PROFILER)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{_PROFILER} is not a package")
    package = importlib.util.module_from_spec(spec)
    sys.modules["profiler"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    # Python puts the folder of this file first; the folder of the script takes its place.
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.exit(main(sys.argv[1]))
