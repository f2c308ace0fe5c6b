"""Seams of datasets and of the client of the Hugging Face hub."""

from profiler.seams.expectations import Exists, Expectation, Parameters
from profiler.seams.seam import Seam

_DATA = "substitutes/data.py"
_OFFLINE = "substitutes/offline.py"


def _seam(owner: str, name: str, expected: Expectation, used_by: str, why: str) -> Seam:
    return Seam(owner=owner, name=name, expected=expected, used_by=(used_by,), why=why, since="2.0")


_LOAD = Parameters("path", "name", "data_dir", "data_files", "split", more=True)
_FROM_DISK = Parameters("dataset_path", more=True)

DATASETS: tuple[Seam, ...] = (
    _seam("datasets", "load_dataset", _LOAD, _DATA, "loads a data set; one that is unavailable is replaced"),
    _seam("datasets.load", "load_dataset", _LOAD, _DATA, "the same function where it is defined"),
    _seam("datasets", "load_from_disk", _FROM_DISK, _DATA, "loads a stored data set; a missing one is replaced"),
    _seam("datasets.load", "load_from_disk", _FROM_DISK, _DATA, "the same function where it is defined"),
    _seam(
        "datasets.arrow_dataset:Dataset", "select", Parameters("self", "indices", more=True), _DATA,
        "takes rows by number; those of a replaced data set are repeated",
    ),
    _seam("datasets.config", "HF_HUB_OFFLINE", Exists(), _OFFLINE, "keeps datasets from asking a hub in vain"),
)  # fmt: skip

HUGGINGFACE_HUB: tuple[Seam, ...] = (
    _seam(
        "huggingface_hub.constants", "HF_HUB_OFFLINE", Exists(), _OFFLINE,
        "keeps the hub's client from asking a hub that does not answer",
    ),
)  # fmt: skip
