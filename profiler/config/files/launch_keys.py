"""What a recipe of trl says to `accelerate launch` and to the environment.

`trl grpo --config recipe.yaml` passes keys that its arguments do not have to `accelerate launch`
(`trl/cli/commands/training.py` of trl 1.16), and sets the variables of `env` (`TrlParser.parse_args_and_config`).
"""

from collections.abc import Iterator, Mapping

from profiler.config.files.companion_files import accelerate_part
from profiler.config.notes import Note, not_counted
from profiler.config.options.reading import show
from profiler.config.trl.parts import Part
from profiler.domain.errors import Fault

_PROCESSES = 8
"""`num_processes` of each file in `trl/accelerate_configs/`, trl 1.16."""


def _zero(stage: int) -> dict[str, object]:
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": stage}}


def _fsdp(version: int, reshards: object) -> dict[str, object]:
    inner = {"fsdp_version": version, "fsdp_reshard_after_forward": reshards}
    return {"distributed_type": "FSDP", "fsdp_config": inner}


ACCELERATE_CONFIGS: Mapping[str, Mapping[str, object]] = {
    "single_gpu": {"distributed_type": "NO"},
    "multi_gpu": {"distributed_type": "MULTI_GPU"},
    "zero1": _zero(1),
    "zero2": _zero(2),
    "zero3": _zero(3),
    "fsdp1": _fsdp(1, "FULL_SHARD"),
    "fsdp2": _fsdp(2, reshards=True),
}
"""What of each file in `trl/accelerate_configs/` of trl 1.16 decides memory; all have `mixed_precision: bf16`."""

_FILE = (".yaml", ".yml", ".json")

_ALLOC_CONF = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def launch_part(name: str, values: Mapping[str, object]) -> Part:
    """Return how processes share the work, as the recipe `name` says it to `accelerate launch`."""
    part = _config_part(name, values.get("accelerate_config"))
    if values.get("num_processes") is None or part.job.get("num_processes") == 1:
        return part
    return Part(
        name=name,
        values=part.values,
        job={**part.job, "num_processes": values["num_processes"]},
        notes=part.notes,
        faults=part.faults,
    )


def _config_part(name: str, config: object) -> Part:
    if config is None:
        return Part(name=name)
    if isinstance(config, str) and config in ACCELERATE_CONFIGS:
        content = {"num_processes": _PROCESSES, "mixed_precision": "bf16", **ACCELERATE_CONFIGS[config]}
        return accelerate_part(f"accelerate_config={config}", content)
    if isinstance(config, str) and config.endswith(_FILE):
        note = not_counted(f"what accelerate_config={config} changes (read it as well: config={config})")
        return Part(name=name, notes=(note,))
    problem = f"must be a file, or one of {', '.join(ACCELERATE_CONFIGS)}"
    return Part(name=name, faults=(Fault(key="accelerate_config", found=show(config), problem=problem),))


def environment_notes(name: str, values: Mapping[str, object]) -> Iterator[Note]:
    """Return a note if the recipe sets how torch allocates, which a key of the trial counts."""
    env = values.get("env")
    for variable in _ALLOC_CONF if isinstance(env, Mapping) else ():
        if isinstance(env, Mapping) and env.get(variable):
            text = f"{variable}={show(env[variable])} of {name} (alloc_conf= counts it)"
            yield Note(key="alloc_conf", text=text, is_counted=False)
            return
