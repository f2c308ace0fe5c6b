"""Data sets of torchvision and metrics of evaluate; the libraries need not be installed."""

from types import ModuleType
from typing import Any
from urllib.error import URLError

import pytest

from profiler.seams.patching import patched
from profiler.substitutes import Replaced, SubstituteOptions
from profiler.substitutes.data_sets.known_datasets import vision_patches
from profiler.substitutes.unavailable_packages import metric_patches

OPTIONS = SubstituteOptions(rows=20)
FILES = {"MNIST": "mnist", "CIFAR10": "cifar", "SVHN": "svhn", "STL10": "stl10"}


def torchvision(error: Exception) -> Any:
    """Return a module with classes that fail to load their images."""

    def fail(self: Any, root: str) -> None:
        self.root = root
        raise error

    module = ModuleType("torchvision.datasets")
    for name, file in FILES.items():
        made = type(name, (), {"__init__": fail, "__module__": f"torchvision.datasets.{file}"})
        setattr(module, name, made)
    return module


@pytest.mark.parametrize(
    ("name", "labels", "shape"),
    [
        ("MNIST", "targets", (20, 28, 28)),
        ("CIFAR10", "targets", (20, 32, 32, 3)),
        ("SVHN", "labels", (20, 3, 32, 32)),
        ("STL10", "labels", (20, 3, 96, 96)),
    ],
)
def test_images_that_are_unavailable_are_grey(name: str, labels: str, shape: tuple[int, ...]) -> None:
    module, replaced = torchvision(URLError("no network")), Replaced()
    with patched(vision_patches(module, OPTIONS, replaced)):
        found = getattr(module, name)("data")
    assert tuple(found.data.shape) == shape
    assert sorted({int(label) for label in getattr(found, labels)}) == list(range(10))
    assert len(found.class_to_idx) == len(found.classes) == 10
    assert f"images of {name} (20 grey ones of" in replaced.line()


def test_a_class_made_from_another_has_its_own_number_of_classes() -> None:
    module = torchvision(RuntimeError("Dataset not found or corrupted."))
    with patched(vision_patches(module, OPTIONS, Replaced())):
        found = type("CIFAR100", (module.CIFAR10,), {})("data")
    assert len(found.classes) == 100


def test_another_error_of_a_data_set_stays() -> None:
    module = torchvision(RuntimeError("a damaged file"))
    with patched(vision_patches(module, OPTIONS, Replaced())), pytest.raises(RuntimeError, match="damaged"):
        module.MNIST("data")


def evaluate(load: Any) -> Any:
    """Return a module that loads metrics by `load`."""
    module = ModuleType("evaluate")
    module.loading = ModuleType("evaluate.loading")  # type: ignore[attr-defined]
    module.load = module.loading.load = load  # type: ignore[attr-defined]
    return module


def unavailable(path: str, *_: object) -> Any:
    """Fail as evaluate does without a network."""
    raise FileNotFoundError(f"Couldn't find a module script at {path}.")


def test_a_metric_that_is_unavailable_answers_every_figure() -> None:
    module, replaced = evaluate(unavailable), Replaced()
    with patched(metric_patches(module, replaced)):
        metric = module.load("glue", "mrpc")
    metric.add_batch(predictions=[1], references=[1])
    figures = metric.compute()
    assert figures["accuracy"] == figures["f1"] == 0.5
    assert dict(figures) == {"accuracy": 0.5, "f1": 0.5}
    assert replaced.phrases() == ("metric glue (computes nothing, every figure is 0.5)",)


def test_a_metric_that_is_here_stays() -> None:
    module = evaluate(lambda path: f"the metric {path}")
    with patched(metric_patches(module, Replaced())):
        assert module.load("mine") == "the metric mine"
