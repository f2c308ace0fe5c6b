"""Which program a file with keys and values is for, by keys that only its files have."""

from collections.abc import Mapping

from profiler.config.companion_files import ACCELERATE_KEYS, accelerate_part, adapter_part, deepspeed_part
from profiler.config.parts import Part
from profiler.domain.errors import Fault

_ACCELERATE = frozenset({"compute_environment", "distributed_type", "main_training_function", "machine_rank"})
_ADAPTER = frozenset({"peft_type", "base_model_name_or_path"})
_DEEPSPEED = frozenset({"zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer"})
_MODEL = ("model_type", "architectures")


def part_of(name: str, values: Mapping[str, object]) -> Part:
    """Return what the file `name` says: of accelerate, DeepSpeed or peft, and else of trl."""
    if _ACCELERATE & values.keys() or ("num_processes" in values and values.keys() <= ACCELERATE_KEYS):
        return accelerate_part(name, values)
    if _ADAPTER & values.keys():
        return adapter_part(name, values)
    if _DEEPSPEED & values.keys():
        return deepspeed_part(name, values)
    if all(key in values for key in _MODEL):
        problem = "is the config.json of a model"
        return Part(name=name, faults=(Fault(key="config", found=name, problem=problem, hint="Give it as model=."),))
    return _trl_part(name, values)


def _trl_part(name: str, values: Mapping[str, object]) -> Part:
    """Return what a file of trl says; DeepSpeed's configuration may be inside."""
    inner = values.get("deepspeed")
    if not isinstance(inner, Mapping):
        return Part(name=name, values=values)
    within = deepspeed_part(name, inner)
    own = {key: value for key, value in values.items() if key != "deepspeed"}
    return Part(name=name, values={**within.values, **own}, job=within.job, notes=within.notes, unknown=within.unknown)
