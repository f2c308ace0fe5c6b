"""Groups of equal Ray workers of which the first ones run and answer for the others: verl's worker groups.

verl's driver calls every worker of a group, and joins what they return. Here the workers that are not run have the
handles of those that are. Each of these takes the whole batch, computes its own share of it, and makes up what the
others would have returned: zeros of the size of their rows. Its collectives are answered as those of a single rank.

Where verl's command reads its configuration, the number of workers that run is chosen, and keys that cost the host's
memory or time without changing memory of a GPU are set, unless the user has set them.
"""

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from profiler.emulation.card import PROCESSES_VARIABLE, RANKS_POSSIBLE, RANKS_RUN, note_choice, note_setting
from profiler.seams.patching import around_import

_RUN_ALL = "run all of them, by ranks= with their number"


def answers_alone(environment: Mapping[str, str]) -> bool:
    """Return whether this process is a worker of a group of which not every worker runs."""
    of_group = environment.get("WG_BACKEND") == "ray"
    return of_group and 0 < ranks_run(environment) < int(environment.get("WORLD_SIZE") or 1)


def ranks_run(environment: Mapping[str, str]) -> int:
    """Return the number of workers of each group that run; 0 stands for all."""
    return int(environment.get(RANKS_RUN) or 0)


def prepare_frameworks(environment: Mapping[str, str]) -> None:
    """Register what happens around the imports of Ray, verl and its engine in a process of a job."""
    around_import("verl.utils.device", after=settle_configurations)
    unloaded = load_no_weights(environment[PROCESSES_VARIABLE])
    around_import("vllm.model_executor.model_loader.default_loader", after=unloaded)
    around_import("ray._private.services", after=refuse_other_clusters(environment[PROCESSES_VARIABLE]))
    if ranks_run(environment):
        run_first_workers(environment)


def run_first_workers(environment: Mapping[str, str]) -> None:
    """Let verl start and call the first workers of each group only, from its import on."""
    run = ranks_run(environment)
    around_import("verl.single_controller.ray.base", after=lambda module: _call_first(module, run))
    around_import("verl.single_controller.base.decorator", after=_hand_over_whole_batches)
    around_import("verl.utils.transferqueue_utils", after=_compute_shares)
    around_import("verl.workers.rollout.llm_server", after=lambda module: _start_first_engine(module, run))


def _call_first(module: ModuleType, run: int) -> None:
    """Start the first workers of a group, and call each of them once for all that are equal to it."""
    group = module.RayWorkerGroup
    create = group._create_worker

    @wraps(create)
    def created(self: Any, rank: int, *args: Any, **kwargs: Any) -> None:
        if rank < run:
            create(self, rank, *args, **kwargs)
            return
        self._workers.append(self._workers[rank % run])
        self._worker_names.append(self._worker_names[rank % run])

    def execute_all_async(self: Any, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        size = len(self._workers)
        given = (*args, *kwargs.values())
        for_each = all(isinstance(each, list) and len(each) == size for each in given)
        results = []
        for rank in range(min(run, size)):
            own = [each[rank] for each in args] if for_each else args
            named = {name: each[rank] if for_each else each for name, each in kwargs.items()}
            results.append(self._execute_remote_single_worker(self._workers[rank], method_name, *own, **named))
        return [results[rank % len(results)] for rank in range(size)]

    group._create_worker = created
    group.execute_all_async = execute_all_async


def _hand_over_whole_batches(module: ModuleType) -> None:
    """Give each worker the whole batch, and take the result of the first one."""
    dispatch, collect = module.dispatch_nd_compute_dataproto, module.collect_nd_compute_dataproto

    def dispatched(_ranks: Any, _size: int, group: Any, *args: Any, **kwargs: Any) -> Any:
        return dispatch([0] * group.world_size, 1, group, *args, **kwargs)

    def collected(_mask: Any, group: Any, output: Sequence[Any]) -> Any:
        return collect([rank == 0 for rank in range(group.world_size)], group, output)

    module.dispatch_nd_compute_dataproto = dispatched  # type: ignore[attr-defined]
    module.collect_nd_compute_dataproto = collected  # type: ignore[attr-defined]


def _start_first_engine(module: ModuleType, run: int) -> None:
    """Start one engine, which generates for all: each has the same weights, and a KV cache of a set size."""
    manager = module.LLMServerManager
    initialize = manager._initialize_llm_servers

    class FirstOf:
        """A group of workers that has as many as run."""

        def __init__(self, group: Any) -> None:
            self.world_size, self.workers = run, group.workers

    @wraps(initialize)
    async def initialized(self: Any, *args: Any, **kwargs: Any) -> None:
        rollout = self.rollout_config
        size = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
        whole = self.worker_group
        if whole is None or whole.world_size <= run:
            await initialize(self, *args, **kwargs)
            return
        if size != run:
            raise ValueError(
                f"ranks={run} runs {run} of {whole.world_size} workers, but an engine has {size} (its parallel sizes). "
                f"Use ranks={size}, or leave it out."
            )
        self.worker_group = FirstOf(whole)
        try:
            await initialize(self, *args, **kwargs)
        finally:
            self.worker_group = whole

    manager._initialize_llm_servers = initialized


# ---- the cluster of another job --------------------------------------------------------------------------------------


def refuse_other_clusters(folder: str) -> Callable[[ModuleType], None]:
    """Return what has to be done after the import of Ray's `services`: it shall find no cluster of another job."""

    def after_import(services: ModuleType) -> None:
        find = services.get_ray_address_from_environment

        @wraps(find)
        def found(*args: Any, **kwargs: Any) -> Any:
            if other := process_of_another_cluster(folder):
                raise RuntimeError(
                    f"A Ray cluster is running already (process {other}), and its processes are not part of this run. "
                    "End it with ray stop, or run on another machine."
                )
            return find(*args, **kwargs)

        services.get_ray_address_from_environment = found  # type: ignore[attr-defined]

    return after_import


def process_of_another_cluster(folder: str, processes: Path = Path("/proc")) -> int | None:
    """Return a process of a Ray cluster that was not started in the job of this folder; None if there is none."""
    for process in processes.glob("[0-9]*"):
        try:
            program = (process / "cmdline").read_bytes().partition(b"\0")[0]
            if Path(os.fsdecode(program)).name != "gcs_server":
                continue
            if not is_of_job(process, folder):
                return int(process.name)
        except PermissionError:  # of another user
            return int(process.name)
        except OSError:
            continue
    return None


def is_of_job(process: Path, folder: str) -> bool:
    """Return whether a process, by its folder of the kernel, was started in the job of this folder.

    Raises:
        OSError: It has ended, or is of another user.
    """
    return os.fsencode(f"{PROCESSES_VARIABLE}={folder}") in (process / "environ").read_bytes().split(b"\0")


# ---- the share of a worker -------------------------------------------------------------------------------------------


def _compute_shares(module: ModuleType) -> None:
    """Let a worker that answers alone compute its share of the batches that it is given."""
    if not answers_alone(os.environ):
        return
    bridge = module.tqbridge

    @wraps(bridge)
    def of_share(*args: Any, **kwargs: Any) -> Any:
        decorate = bridge(*args, **kwargs)
        return lambda function: decorate(share_of_batch(function))

    module.tqbridge = of_share  # type: ignore[attr-defined]


_ACTIVE = False
"""Whether a share is being computed: what it calls gets no whole batch."""


def share_of_batch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a worker that computes with the worker's share of each batch among its arguments."""
    if inspect.iscoroutinefunction(function):
        return function

    @wraps(function)
    def shared(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _ACTIVE
        if _ACTIVE or not any(_is_batch(each) for each in (*args, *kwargs.values())):
            return function(self, *args, **kwargs)
        count, place = _shares(self)
        batch = next(each for each in (*args, *kwargs.values()) if _is_batch(each))
        args = tuple(_share(each, count, place) for each in args)
        kwargs = {name: _share(each, count, place) for name, each in kwargs.items()}
        _ACTIVE = True
        try:
            output = function(self, *args, **kwargs)
        finally:
            _ACTIVE = False
        return _with_rows_of_others(output, batch, count, place) if _is_batch(output) else output

    return shared


def _is_batch(value: object) -> bool:
    return type(value).__name__ == "TensorDict" and bool(getattr(value, "batch_size", ()))


def _shares(worker: Any) -> tuple[int, int]:
    """Return into how many shares a batch is divided among the workers, and which one is the worker's."""
    for each in (worker, *(getattr(worker, name, None) for name in ("actor", "ref", "critic"))):
        if (engine := getattr(each, "engine", None)) is not None:
            return engine.get_data_parallel_size(), engine.get_data_parallel_rank()
    raise RuntimeError(f"The share of {type(worker).__name__} is not known: {_RUN_ALL}")


def _share(value: Any, count: int, place: int) -> Any:
    if not _is_batch(value):
        return value
    rows = value.batch_size[0]
    if rows % count:
        raise RuntimeError(f"{rows} rows cannot be divided among {count} workers: {_RUN_ALL}")
    return _tools().index_select_tensor_dict(value, list(range(place * rows // count, (place + 1) * rows // count)))


def _with_rows_of_others(output: Any, batch: Any, count: int, place: int) -> Any:
    """Return an output of a share with zeros as the rows of the others."""
    rows = batch.batch_size[0]
    begin, end = place * rows // count, (place + 1) * rows // count
    lengths = [_lengths(each) for each in batch.values() if _is_ragged(each)]
    whole = {}
    for name, value in output.items():
        if not getattr(value, "shape", ()):  # one for the batch
            whole[name] = value
        elif _is_ragged(value):
            of_rows = next((each for each in lengths if each[begin:end] == _lengths(value)), None)
            if of_rows is None:
                raise RuntimeError(f"The lengths of {name} are those of no input: {_RUN_ALL}")
            own = value.unbind()
            whole[name] = _tools().nested_tensor_from_tensor_list(
                [
                    own[row - begin] if begin <= row < end else own[0].new_zeros((of_rows[row], *own[0].shape[1:]))
                    for row in range(rows)
                ]
            )
        else:
            made = value.new_zeros((rows, *value.shape[1:]))
            made[begin:end] = value
            whole[name] = made
    return type(output)(whole, batch_size=[rows])


def _is_ragged(value: Any) -> bool:
    return bool(getattr(value, "is_nested", False))


def _lengths(value: Any) -> list[int]:
    return [len(row) for row in value.unbind()]


def _tools() -> Any:
    return importlib.import_module("verl.utils.tensordict_utils")


# ---- the engine ------------------------------------------------------------------------------------------------------


def load_no_weights(folder: str) -> Callable[[ModuleType], None]:
    """Return what has to be done after the import of vLLM's `default_loader`.

    A model's folder that a job has made has a configuration and no weights: those of vLLM stay as they were allocated.
    A framework that asks vLLM for `load_format=dummy` instead may do more, as verl, which then sends the base too.
    """

    def after_import(module: ModuleType) -> None:
        load = module.DefaultModelLoader.load_weights

        @wraps(load)
        def loaded(self: Any, model: Any, model_config: Any, *args: Any, **kwargs: Any) -> Any:
            if Path(model_config.model).is_relative_to(folder):
                return None
            return load(self, model, model_config, *args, **kwargs)

        module.DefaultModelLoader.load_weights = loaded

    return after_import


# ---- the configuration of verl's command -----------------------------------------------------------------------------

STEPS = 2
"""Training steps where none are given: states of the optimizer exist from the first one's end."""
_OF_THE_HOST: Mapping[str, object] = {
    "actor_rollout_ref.rollout.agent.num_workers": 1,
    "data.dataloader_num_workers": 0,
    "ray_kwargs.ray_init.include_dashboard": False,
    "reward.num_workers": 1,
    "trainer.val_before_train": False,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
}
"""Keys of verl that decide processes of the host and its time. Each process takes 0.3 to 0.7 GB of the host."""
_STEPS = "trainer.total_training_steps"
_AT_STEPS = ("trainer.save_freq", "trainer.test_freq")
_LOGGER = "trainer.logger"
_TRACKERS = ("clearml", "mlflow", "swanlab", "trackio", "wandb")
"""Loggers of verl that are packages of the same name."""
_SIZES = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")


def settle_configurations(module: Any) -> None:
    """Set keys of verl's configuration and choose its workers in `auto_set_device`, which its commands call first."""
    set_device = module.auto_set_device

    @wraps(set_device)
    def settled(config: Any) -> Any:
        result = set_device(config)
        if "actor_rollout_ref" in config:
            folder = os.environ[PROCESSES_VARIABLE]
            for key, value in settings_of_run(config, sys.argv[1:]).items():
                _omegaconf().update(config, key, value, force_add=True)
                note_setting(folder, key, value)
            if run := chosen_ranks(config, os.environ):
                os.environ[RANKS_RUN] = str(run)  # of Ray's processes, which start later
                note_choice(folder, run)
        return result

    module.auto_set_device = settled


def settings_of_run(config: Any, words: Sequence[str]) -> dict[str, object]:
    """Return the keys of verl's configuration to set, with their values.

    Args:
        config: As Hydra has composed it.
        words: Arguments of the command, by which users set keys. These keys are kept; how often a run saves and tests
            is not where the run is shortened to `STEPS`: verl would do both after its last step.
    """
    given = {word.lstrip("+~").partition("=")[0] for word in words}
    found = {key: value for key, value in _OF_THE_HOST.items() if key not in given and _has(config, key)}
    if _STEPS not in given and _value(config, _STEPS) is None:
        found[_STEPS] = STEPS
        found |= {key: -1 for key in _AT_STEPS if (_value(config, key) or 0) > STEPS}
    loggers = _value(config, _LOGGER)
    names = [loggers] if isinstance(loggers, str) else list(loggers or [])
    known = [name for name in names if name not in _TRACKERS or importlib.util.find_spec(name) is not None]
    if known != names:
        found[_LOGGER] = known or ["console"]
    return {key: value for key, value in found.items() if _value(config, key) != value}


def chosen_ranks(config: Any, environment: Mapping[str, str]) -> int | None:
    """Return how many workers of each group run, where nobody has said it; None if all run.

    Where the machine does not hold all of them, those of one engine run.
    """
    possible = int(environment.get(RANKS_POSSIBLE) or 0)
    workers = (_value(config, "trainer.n_gpus_per_node") or 1) * (_value(config, "trainer.nnodes") or 1)
    if environment.get(RANKS_RUN) or not 0 < possible < workers:
        return None
    size = 1
    for name in _SIZES:
        size *= _value(config, f"actor_rollout_ref.rollout.{name}") or 1
    return size if size < workers else None


def _has(config: Any, key: str) -> bool:
    parent, _, name = key.rpartition(".")
    found = _value(config, parent)
    return found is not None and (name in found or parent == "ray_kwargs.ray_init")


def _value(config: Any, key: str) -> Any:
    return _omegaconf().select(config, key)


def _omegaconf() -> Any:
    return importlib.import_module("omegaconf").OmegaConf
