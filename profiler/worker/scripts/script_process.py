"""The process of a script. Python runs this file by its path, in an environment that need not have the profiler.

    PYTHON profiler/worker/scripts/script_process.py JOB PIPE
    PYTHON profiler/worker/scripts/script_process.py accelerate launch WORD...

The first ends when the other end of PIPE, a file descriptor, is closed. The second prints what `accelerate launch
WORD...` would hand to the processes of a script, by accelerate's own code: a JSON object of environment variables.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PROFILER = Path(__file__).resolve().parents[2]


def main(job_file: str, pipe: int) -> int:
    """Run the job in the file while the other end of a pipe is open, and return the exit code."""
    _find_profiler()
    if sys.platform == "linux":
        from profiler.execution.processes.child import end_with

        end_with(pipe)
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


_HANDED_ON = ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_")
"""Beginnings of the variables; those of ranks and cards are set by who starts the script."""


def variables(words: Sequence[str]) -> Mapping[str, str]:
    """Return the environment variables that accelerate sets."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import (
        prepare_deepspeed_cmd_env,
        prepare_multi_gpu_env,
        prepare_simple_launcher_cmd_env,
    )

    parsed = launch_command_parser().parse_args(list(words))
    arguments, defaults, has_precision = _validate_launch_command(parsed)
    if arguments.use_deepspeed:
        fields = [*(defaults.deepspeed_config if defaults else ()), *(["mixed_precision"] if has_precision else ())]
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, found = prepare_deepspeed_cmd_env(arguments)
    elif arguments.use_fsdp or arguments.multi_gpu or arguments.use_megatron_lm:
        found = prepare_multi_gpu_env(arguments)
    else:
        _, found = prepare_simple_launcher_cmd_env(arguments)
    return {name: value for name, value in found.items() if name.startswith(_HANDED_ON) and _is_new(name, value)}


def _is_new(name: str, value: str) -> bool:
    return os.environ.get(name) != value


if __name__ == "__main__":
    # Python puts the folder of this file first; the folder of the script takes its place.
    if not sys.flags.safe_path:
        del sys.path[0]
    if sys.argv[1:3] == ["accelerate", "launch"]:
        print(json.dumps(variables(sys.argv[3:])))  # noqa: T201  # read by who started this process
        sys.exit()
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
