"""Seams of torchvision, evaluate and diffusers, which only scripts use."""

from profiler.seams.seam import Absence, Exists, Expectation, Parameters, Seam


def _seam(owner: str, name: str, expected: Expectation, used_by: str, why: str, since: str) -> Seam:
    return Seam(
        owner=owner,
        name=name,
        expected=expected,
        used_by=(used_by,),
        why=why,
        since=since,
        absent_in=Absence.SOME_BUILDS,
    )


_IMAGES = {"mnist": "MNIST", "cifar": "CIFAR10", "svhn": "SVHN", "stl10": "STL10"}
_VISION, _METRICS = "substitutes/data_sets/vision_datasets.py", "substitutes/unavailable_packages.py"
_LOAD = Parameters("path", "config_name", more=True)

TORCHVISION: tuple[Seam, ...] = tuple(
    _seam(f"torchvision.datasets.{module}:{name}", "__init__", Exists(), _VISION, "downloads its images", "0.20")
    for module, name in _IMAGES.items()
)
EVALUATE: tuple[Seam, ...] = (
    _seam("evaluate", "load", _LOAD, _METRICS, "downloads the program of a metric", "0.4"),
    _seam("evaluate.loading", "load", _LOAD, _METRICS, "the same function where it is defined", "0.4"),
)


_MODELS = "substitutes/checkpoints/diffusers_models.py"


def _seam_diffusers(owner: str, name: str, expected: Expectation, why: str) -> Seam:
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
    _seam_diffusers(
        "diffusers.configuration_utils:ConfigMixin", "load_config", Parameters(_NAME, more=True),
        "finds the configuration of a name; one that is known or assumed needs no network",
    ),
    _seam_diffusers(
        "diffusers.models.modeling_utils:ModelMixin", "from_pretrained", Parameters(_NAME, more=True),
        "loads a checkpoint; the model is built from its configuration in its place",
    ),
    _seam_diffusers(
        "diffusers.models.modeling_utils", "no_init_weights", Exists(),
        "builds a model without writing to its weights",
    ),
)  # fmt: skip
