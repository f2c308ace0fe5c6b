"""Seams of datasets, of the client of the Hugging Face hub, and of libraries that only scripts use."""

from profiler.seams.seam import Absence, Exists, Expectation, Parameters, Seam

_DATA = "substitutes/data_sets/answering_sets.py"
_ACTIVE = "substitutes/active.py"
_FOLDERS = "substitutes/checkpoints/known_configs.py"
_DATASET = "datasets.arrow_dataset:Dataset"
_STREAMED = "datasets.iterable_dataset:IterableDataset"


def _seam(owner: str, name: str, expected: Expectation, used_by: str, why: str, *more: str) -> Seam:
    return Seam(owner=owner, name=name, expected=expected, used_by=(used_by, *more), why=why, since="2.0")


_LOAD = Parameters("path", "name", "data_dir", "data_files", "split", more=True)
_FROM_DISK = Parameters("dataset_path", more=True)

_NAMES_COLUMNS = {
    "rename_column": "original_column_name",
    "rename_columns": "column_mapping",
    "select_columns": "column_names",
    "cast_column": "column",
    "class_encode_column": "column",
    "sort": "column_names",
    "unique": "column",
}
"""Methods of a data set that name columns, with the argument that does."""

DATASETS: tuple[Seam, ...] = (
    _seam("datasets", "load_dataset", _LOAD, _DATA, "loads a data set; one that is unavailable is replaced"),
    _seam("datasets.load", "load_dataset", _LOAD, _DATA, "the same function where it is defined"),
    _seam("datasets", "load_from_disk", _FROM_DISK, _DATA, "loads a stored data set; a missing one is replaced"),
    _seam("datasets.load", "load_from_disk", _FROM_DISK, _DATA, "the same function where it is defined"),
    _seam(
        _DATASET, "select", Parameters("self", "indices", more=True), _DATA,
        "takes rows by number; those of a replaced data set are repeated",
    ),
    _seam(
        _DATASET, "train_test_split", Parameters("self", "test_size", "train_size", more=True), _DATA,
        "takes a number of rows; those of a replaced data set are repeated",
    ),
    *(
        _seam(_DATASET, name, Parameters("self", first, more=True), _DATA, "names columns; missing ones are made")
        for name, first in _NAMES_COLUMNS.items()
    ),
    _seam(
        _DATASET, "remove_columns", Parameters("self", "column_names", more=True), _DATA,
        "names columns; missing ones are left out",
    ),
    _seam(
        _DATASET, "set_transform", Parameters("self", "transform", more=True), _DATA,
        "gives batches to a function of the script; they answer any column",
    ),
    *(
        _seam(owner, name, Parameters("self", "function", more=True), _DATA,
            "gives rows to a function of the script; they answer any column")
        for owner in (_DATASET, _STREAMED) for name in ("map", "filter")
    ),
    _seam(_DATASET, "__getitem__", Parameters("self", "key"), _DATA, "returns rows, which answer any column"),
    _seam(_DATASET, "__getitems__", Parameters("self", "keys"), _DATA, "returns rows, which answer any column"),
    *(
        _seam(owner, "__iter__", Parameters("self"), _DATA, "yields rows, which answer any column")
        for owner in (_DATASET, _STREAMED)
    ),
    _seam(
        "datasets.formatting.formatting:LazyDict", "__getitem__", Parameters("self", "key"), _DATA,
        "reads a column of the row or batch that a function of the script gets",
    ),
    _seam(
        "datasets.formatting.formatting:LazyDict", "get", Parameters("self", "key", "default"), _DATA,
        "asks whether a column is there, by an inherited method that reads it",
    ),
    _seam("datasets.config", "HF_HUB_OFFLINE", Exists(), _ACTIVE, "keeps datasets from asking a hub in vain"),
)  # fmt: skip

HUGGINGFACE_HUB: tuple[Seam, ...] = (
    _seam(
        "huggingface_hub.constants", "HF_HUB_OFFLINE", Exists(), _ACTIVE,
        "keeps the hub's client from asking a hub that does not answer",
    ),
    _seam(
        "huggingface_hub.constants", "HF_HUB_DISABLE_TELEMETRY", Exists(), "training/run.py",
        "keeps trl from reporting trainers of trials, and cards that do not exist", _ACTIVE,
    ),
    _seam(
        "huggingface_hub.file_download", "try_to_load_from_cache", Parameters("repo_id", "filename", more=True),
        _FOLDERS, "finds a file of a model, which libraries without a class of transformers ask for",
    ),
    _seam(
        "huggingface_hub._snapshot_download", "snapshot_download", Parameters("repo_id", more=True), _FOLDERS,
        "finds the folder of a model",
    ),
)  # fmt: skip


def _seam_of_scripts(owner: str, name: str, expected: Expectation, used_by: str, why: str, since: str) -> Seam:
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
_VISION, _METRICS = "substitutes/data_sets/known_datasets.py", "substitutes/unavailable_packages.py"
_LOAD_METRIC = Parameters("path", "config_name", more=True)

TORCHVISION: tuple[Seam, ...] = tuple(
    _seam_of_scripts(
        f"torchvision.datasets.{module}:{name}", "__init__", Exists(), _VISION, "downloads its images", "0.20"
    )
    for module, name in _IMAGES.items()
)
EVALUATE: tuple[Seam, ...] = (
    _seam_of_scripts("evaluate", "load", _LOAD_METRIC, _METRICS, "downloads the program of a metric", "0.4"),
    _seam_of_scripts(
        "evaluate.loading", "load", _LOAD_METRIC, _METRICS, "the same function where it is defined", "0.4"
    ),
)

_MODELS = "substitutes/checkpoints/diffusers_models.py"
_NAME = "pretrained_model_name_or_path"

DIFFUSERS: tuple[Seam, ...] = (
    _seam_of_scripts(
        "diffusers.configuration_utils:ConfigMixin", "load_config", Parameters(_NAME, more=True), _MODELS,
        "finds the configuration of a name; one that is known or assumed needs no network", "0.42",
    ),
    _seam_of_scripts(
        "diffusers.models.modeling_utils:ModelMixin", "from_pretrained", Parameters(_NAME, more=True), _MODELS,
        "loads a checkpoint; the model is built from its configuration in its place", "0.42",
    ),
    _seam_of_scripts(
        "diffusers.models.modeling_utils", "no_init_weights", Exists(), _MODELS,
        "builds a model without writing to its weights", "0.42",
    ),
)  # fmt: skip

_CALL, _HOOKS = Parameters("self", more=True), "scripts/hooks.py"
_ASYNCHRONOUS = "trl.experimental.async_grpo.weight_transfer"
_ENGINE, _VERL = "vllm.v1.worker.gpu_worker:Worker", "verl.workers.engine_workers"
_PHASES_OF_AN_ENGINE = {
    "load_model": "the load phase of an engine",
    "determine_available_memory": "its profile run, which belongs to loading",
    "compile_or_warm_up_model": "its graphs, which belong to loading",
    "execute_model": "its rollout phase",
    "sample_tokens": "its rollout phase, where sampling is a call of its own",
    "wake_up": "maps what sleep has unmapped, before it takes weights",
    "init_weight_transfer_engine": "joins a group with the trainer, which gives it weights",
    "start_weight_update": "begins to take weights of a trainer",
    "update_weights": "takes weights of a trainer",
    "finish_weight_update": "has taken weights of a trainer",
}

_GROUPS = "emulation/inside/worker_groups.py"
_WORKER_GROUPS = (
    (
        "single_controller.ray.base:RayWorkerGroup", "_create_worker", ("self", "rank"),
        "starts one worker of a group",
    ),
    (
        "single_controller.ray.base:RayWorkerGroup", "execute_all_async", ("self", "method_name"),
        "calls each worker of a group",
    ),
    (
        "single_controller.base.decorator", "dispatch_nd_compute_dataproto",
        ("dp_rank_mapping", "dp_size", "worker_group"), "divides a batch among workers",
    ),
    (
        "single_controller.base.decorator", "collect_nd_compute_dataproto", ("collect_mask", "worker_group", "output"),
        "joins what workers return",
    ),
    ("utils.transferqueue_utils", "tqbridge", (), "hands a worker its batch"),
    ("utils.tensordict_utils", "index_select_tensor_dict", ("batch", "indices"), "takes rows of a batch"),
    ("utils.tensordict_utils", "nested_tensor_from_tensor_list", ("tensors",), "joins rows of any length"),
    (
        "workers.rollout.llm_server:LLMServerManager", "_initialize_llm_servers", ("self",),
        "starts the engines of a group",
    ),
)  # fmt: skip

OF_PROCESSES: tuple[Seam, ...] = (
    *(_seam_of_scripts(_ENGINE, name, _CALL, _HOOKS, why, "0.24") for name, why in _PHASES_OF_AN_ENGINE.items()),
    _seam_of_scripts(
        f"{_VERL}:TrainingWorker", "infer_batch", _CALL, _HOOKS, "log-probabilities without gradient", "0.9"
    ),
    _seam_of_scripts(
        f"{_VERL}:ActorRolloutRefWorker", "update_weights", _CALL, _HOOKS, "sends weights to the engine", "0.9"
    ),
    _seam_of_scripts(
        "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension", "update_weights_from_ipc", _CALL, _HOOKS,
        "takes weights in the engine's process", "0.9",
    ),
    *(
        _seam_of_scripts(f"{_ASYNCHRONOUS}:WeightTransferClient", name, _CALL, _HOOKS, why, "1.16")
        for name, why in {"init_weight_transfer": "meets an engine", "send_weights": "sends it weights"}.items()
    ),
    *(
        _seam_of_scripts(f"verl.{owner}", name, Parameters(*parameters, more=True), _GROUPS, why, "0.9")
        for owner, name, parameters, why in _WORKER_GROUPS
    ),
)  # fmt: skip
