"""Seams of diffusers, which only scripts use."""

from profiler.seams.expectations import Exists, Expectation, Parameters
from profiler.seams.seam import Absence, Seam

_MODELS = "substitutes/checkpoints/diffusers_models.py"


def _seam(owner: str, name: str, expected: Expectation, why: str) -> Seam:
    return Seam(
        owner=owner,
        name=name,
        expected=expected,
        used_by=(_MODELS,),
        why=why,
        since="0.42",
        absent_in=Absence.SOME_BUILDS,
    )


_NAME = "pretrained_model_name_or_path"

DIFFUSERS: tuple[Seam, ...] = (
    _seam(
        "diffusers.configuration_utils:ConfigMixin", "load_config", Parameters(_NAME, more=True),
        "finds the configuration of a name; one that is known or assumed needs no network",
    ),
    _seam(
        "diffusers.models.modeling_utils:ModelMixin", "from_pretrained", Parameters(_NAME, more=True),
        "loads a checkpoint; the model is built from its configuration in its place",
    ),
    _seam(
        "diffusers.models.modeling_utils", "no_init_weights", Exists(),
        "builds a model without writing to its weights",
    ),
)  # fmt: skip
