"""Seams of torchvision and evaluate, which only scripts use."""

from profiler.seams.expectations import Exists, Expectation, Parameters
from profiler.seams.seam import Absence, Seam


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
_VISION, _METRICS = "substitutes/data_sets/vision_datasets.py", "substitutes/metrics.py"
_LOAD = Parameters("path", "config_name", more=True)

TORCHVISION: tuple[Seam, ...] = tuple(
    _seam(f"torchvision.datasets.{module}:{name}", "__init__", Exists(), _VISION, "downloads its images", "0.20")
    for module, name in _IMAGES.items()
)
EVALUATE: tuple[Seam, ...] = (
    _seam("evaluate", "load", _LOAD, _METRICS, "downloads the program of a metric", "0.4"),
    _seam("evaluate.loading", "load", _LOAD, _METRICS, "the same function where it is defined", "0.4"),
)
