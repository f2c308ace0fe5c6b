"""What `accelerate launch` would hand to the processes of a script, by accelerate's own code. Started by its path.

    PYTHON profiler/worker/scripts/accelerate_launch.py WORD...

The words are those after `accelerate launch`. Prints a JSON object of environment variables.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence

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
    if not sys.flags.safe_path:
        del sys.path[0]
    print(json.dumps(variables(sys.argv[1:])))  # noqa: T201  # read by who started this process
