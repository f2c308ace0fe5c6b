"""Data sets of torchvision that are unavailable, replaced by grey images of the same size."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from profiler.seams.patching import Patch
from profiler.substitutes.options import Replaced, SubstituteOptions

_GREY = 128


@dataclass(frozen=True)
class _Form:
    """How a data set keeps its images: the shape of one, the name of the labels, and what both are."""

    image: tuple[int, ...]
    classes: int
    labels: str = "targets"
    is_tensor: bool = False


_MNIST = _Form((28, 28), 10, is_tensor=True)
_FORMS: Mapping[str, _Form] = {
    "MNIST": _MNIST,
    "FashionMNIST": _MNIST,
    "KMNIST": _MNIST,
    "EMNIST": _MNIST,
    "CIFAR10": _Form((32, 32, 3), 10),
    "CIFAR100": _Form((32, 32, 3), 100),
    "SVHN": _Form((3, 32, 32), 10, labels="labels"),
    "STL10": _Form((3, 96, 96), 10, labels="labels"),
}
"""By the name of the class; a class made from one has its form."""

_WITH_OWN_LOADING = ("MNIST", "CIFAR10", "SVHN", "STL10")
"""Classes that load; the others are made from them."""

_UNAVAILABLE = ("Dataset not found", "Error downloading", "File not found", "<urlopen error")


def vision_patches(module: ModuleType, options: SubstituteOptions, replaced: Replaced) -> list[Patch]:
    """Return the patches of torchvision's classes, which download their images."""
    owners = [getattr(module, name) for name in _WITH_OWN_LOADING]
    return [(owner, "__init__", _made(owner.__init__, options, replaced)) for owner in owners]


def _made(original: Any, options: SubstituteOptions, replaced: Replaced) -> Any:
    def load(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except (RuntimeError, OSError) as error:
            form = _form_of(type(self))
            if form is None or not str(error).startswith(_UNAVAILABLE):
                raise
            _fill(self, form, options.rows)
            shape = " x ".join(str(size) for size in form.image)
            replaced.add("images of", type(self).__name__, f"{options.rows:,} grey ones of {shape}")

    return load


def _form_of(kind: type) -> _Form | None:
    return next((_FORMS[each.__name__] for each in kind.__mro__ if each.__name__ in _FORMS), None)


def _fill(data_set: Any, form: _Form, rows: int) -> None:
    images = torch.full((rows, *form.image), _GREY, dtype=torch.uint8)
    labels = torch.arange(rows) % form.classes
    data_set.data = images if form.is_tensor else images.numpy()
    if form.labels == "labels":
        data_set.labels = labels.numpy()
    else:
        data_set.targets = labels if form.is_tensor else labels.tolist()
    if not hasattr(data_set, "classes"):
        data_set.classes = [str(number) for number in range(form.classes)]
    if not hasattr(data_set, "class_to_idx"):
        data_set.class_to_idx = {name: number for number, name in enumerate(data_set.classes)}
