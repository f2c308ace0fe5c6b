"""The first workers of a group run, and answer for the others."""

import asyncio
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from profiler.emulation.card import PROCESSES_VARIABLE, RANKS_POSSIBLE, RANKS_RUN, choice_of, settings_of
from profiler.emulation.inside import worker_groups
from profiler.emulation.inside.worker_groups import answers_alone, chosen_ranks, settings_of_run, share_of_batch

OF_GROUP = {"WG_BACKEND": "ray", "WORLD_SIZE": "8", RANKS_RUN: "2"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({RANKS_RUN: "8"}, False),
        ({RANKS_RUN: "7"}, True),
        ({RANKS_RUN: ""}, False),
        ({"WORLD_SIZE": "2"}, False),
        ({"WG_BACKEND": ""}, False),  # such as a rank that torchrun has started
    ],
)
def test_a_worker_of_a_group_that_runs_in_part_answers_alone(changed, expected):
    assert answers_alone(OF_GROUP | changed) is expected


class Group:
    """A worker group as verl's, whose workers are their ranks."""

    def __init__(self) -> None:
        self._workers: list[int] = []
        self._worker_names: list[str] = []
        self.calls: list[tuple[Any, ...]] = []

    def _create_worker(self, rank: int, pg_idx: int) -> None:
        self._workers.append(rank)
        self._worker_names.append(f"worker_{pg_idx}:{rank}")

    def _execute_remote_single_worker(self, worker: int, name: str, *args: Any, **kwargs: Any) -> str:
        self.calls.append((worker, name, args, kwargs))
        return f"result {len(self.calls)}"


@pytest.fixture
def group(monkeypatch):
    calls = SimpleNamespace(RayWorkerGroup=type("Changed", (Group,), {}))
    worker_groups._call_first(calls, 2)
    made = calls.RayWorkerGroup()
    for rank in range(4):
        made._create_worker(rank=rank, pg_idx=0)
    return made


def test_workers_that_do_not_run_have_handles_of_others(group):
    assert group._workers == [0, 1, 0, 1]
    assert group._worker_names == ["worker_0:0", "worker_0:1"] * 2


def test_a_worker_that_runs_is_called_once_with_its_arguments(group):
    assert group.execute_all_async("step", [10, 11, 12, 13], size=[0, 1, 2, 3]) == ["result 1", "result 2"] * 2
    assert group.calls == [(0, "step", (10,), {"size": 0}), (1, "step", (11,), {"size": 1})]
    group.calls.clear()
    assert len(group.execute_all_async("save", "folder", parts=[1, 2])) == 4  # for all of them alike
    assert group.calls == [(rank, "save", ("folder",), {"parts": [1, 2]}) for rank in (0, 1)]


def test_a_batch_is_handed_over_whole_and_one_result_is_taken():
    module = ModuleType("decorator")
    module.dispatch_nd_compute_dataproto = lambda *args, **kwargs: (args, kwargs)
    module.collect_nd_compute_dataproto = lambda *args: args
    worker_groups._hand_over_whole_batches(module)
    group = SimpleNamespace(world_size=4)
    assert module.dispatch_nd_compute_dataproto([0, 1, 0, 1], 2, group, "batch", key=1) == (
        ([0, 0, 0, 0], 1, group, "batch"),
        {"key": 1},
    )
    assert module.collect_nd_compute_dataproto([True] * 4, group, ["a", "b", "a", "b"]) == (
        [True, False, False, False],
        group,
        ["a", "b", "a", "b"],
    )


class Manager:
    """Starts as many engines as its group has room for."""

    def __init__(self, workers: int, tensor: int) -> None:
        self.worker_group = SimpleNamespace(world_size=workers, workers=list(range(workers)))
        self.rollout_config = SimpleNamespace(
            tensor_model_parallel_size=tensor, data_parallel_size=1, pipeline_model_parallel_size=1
        )
        self.engines: list[list[int]] = []

    async def _initialize_llm_servers(self) -> None:
        size = self.rollout_config.tensor_model_parallel_size
        for engine in range(self.worker_group.world_size // size):
            self.engines.append(self.worker_group.workers[engine * size : (engine + 1) * size])


@pytest.mark.parametrize(("workers", "engines"), [(8, [[0, 1]]), (2, [[0, 1]]), (1, [])])
def test_one_engine_starts_on_the_workers_that_run(workers, engines):
    module = SimpleNamespace(LLMServerManager=type("Changed", (Manager,), {}))
    worker_groups._start_first_engine(module, 2)
    manager = module.LLMServerManager(workers, 2)
    asyncio.run(manager._initialize_llm_servers())
    assert manager.engines == engines
    assert manager.worker_group.world_size == workers


def test_an_engine_larger_than_what_runs_is_refused():
    module = SimpleNamespace(LLMServerManager=type("Changed", (Manager,), {}))
    worker_groups._start_first_engine(module, 1)
    with pytest.raises(
        ValueError, match=r"ranks=1 runs 1 of 8 workers, but an engine has 2 .*Use ranks=2, or leave it out"
    ):
        asyncio.run(module.LLMServerManager(8, 2)._initialize_llm_servers())


# ---- the share of a worker -------------------------------------------------------------------------------------------


class TensorDict(dict[str, Any]):
    """A batch as that of the library of this name: tensors by name, and the number of rows."""

    def __init__(self, values: dict[str, Any], batch_size: list[int]) -> None:
        super().__init__(values)
        self.batch_size = batch_size


def rows_of(batch: TensorDict, places: list[int]) -> TensorDict:
    taken = {name: ragged([value.unbind()[place] for place in places]) for name, value in batch.items()}
    return TensorDict(taken, [len(places)])


def ragged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    functions = SimpleNamespace(index_select_tensor_dict=rows_of, nested_tensor_from_tensor_list=ragged)
    monkeypatch.setattr(worker_groups, "_tools", lambda: functions)


class Worker:
    """The second of four workers, which divide a batch in two."""

    def __init__(self) -> None:
        engine = SimpleNamespace(get_data_parallel_size=lambda: 2, get_data_parallel_rank=lambda: 1)
        self.actor = SimpleNamespace(engine=engine)
        self.seen: list[list[int]] = []

    def inner(self, batch: TensorDict) -> TensorDict:
        self.seen.append([len(row) for row in batch["tokens"].unbind()])
        rows = batch["tokens"].unbind()
        values = {
            "log_probs": ragged([row + 1.0 for row in rows]),
            "sums": torch.stack([row.sum() for row in rows]),
            "metrics": {"loss": 1.0},
        }
        return TensorDict(values, [len(rows)])

    inner = share_of_batch(inner)

    @share_of_batch
    def outer(self, batch: TensorDict) -> TensorDict:
        return self.inner(batch)

    @share_of_batch
    def other_lengths(self, batch: TensorDict) -> TensorDict:
        return TensorDict({"odd": ragged([torch.ones(1), torch.ones(9)])}, [2])

    @share_of_batch
    def without_batch(self, number: int) -> int:
        return number

    @share_of_batch
    async def awaited(self, batch: TensorDict) -> TensorDict:
        return batch


BATCH = TensorDict({"tokens": ragged([torch.full((length,), float(length)) for length in (3, 1, 2, 4)])}, [4])


def test_a_worker_computes_its_rows_and_makes_up_the_others():
    worker = Worker()
    output = worker.outer(BATCH)
    assert worker.seen == [[2, 4]]  # once, although both methods take a batch
    assert [row.tolist() for row in output["log_probs"].unbind()] == [[0, 0, 0], [0], [3, 3], [5, 5, 5, 5]]
    assert output["sums"].tolist() == [0, 0, 4, 16]
    assert output["metrics"] == {"loss": 1.0}
    assert output.batch_size == [4]
    assert worker.outer(BATCH).batch_size == [4]  # and the next call has a share again


def test_what_has_no_batch_is_called_as_it_is():
    assert Worker().without_batch(7) == 7
    assert asyncio.run(Worker().awaited(BATCH)) is BATCH


def test_a_share_that_is_not_known_is_an_error_and_not_a_guess():
    with pytest.raises(RuntimeError, match="The lengths of odd are those of no input: run all of them"):
        Worker().other_lengths(BATCH)
    with pytest.raises(RuntimeError, match="3 rows cannot be divided among 2 workers: run all of them"):
        Worker().outer(rows_of(BATCH, [0, 1, 2]))
    worker = Worker()
    del worker.actor
    with pytest.raises(RuntimeError, match="The share of Worker is not known: run all of them"):
        worker.outer(BATCH)
    worker = Worker()
    with pytest.raises(AttributeError):
        worker.outer(TensorDict({"tokens": object()}, [4]))
    assert worker.outer(BATCH).batch_size == [4]  # an error leaves nothing behind


# ---- the configuration of a command ----------------------------------------------------------------------------------


def configuration(*words: str) -> Any:
    """What Hydra makes of verl's keys and of these words; a key that it does not know is an error."""
    known = {
        "actor_rollout_ref": {
            "rollout": {
                "tensor_model_parallel_size": 2,
                "data_parallel_size": 1,
                "pipeline_model_parallel_size": 1,
                "agent": {"num_workers": 8},
            }
        },
        "data": {"dataloader_num_workers": 8},
        "ray_kwargs": {"ray_init": {"num_cpus": None}},
        "reward": {"num_workers": 8},
        "trainer": {
            "n_gpus_per_node": 8,
            "nnodes": 1,
            "total_training_steps": None,
            "save_freq": 20,
            "test_freq": 2,
            "val_before_train": True,
            "logger": ["console", "file"],
        },
    }
    found = OmegaConf.merge(OmegaConf.create(known), OmegaConf.from_dotlist([word.lstrip("+") for word in words]))
    OmegaConf.set_struct(found, True)
    return found


OF_THE_HOST = {
    "actor_rollout_ref.rollout.agent.num_workers": 1,
    "data.dataloader_num_workers": 0,
    "ray_kwargs.ray_init.include_dashboard": False,
    "reward.num_workers": 1,
    "trainer.val_before_train": False,
}


def test_keys_that_cost_the_host_alone_are_set():
    steps = {"trainer.total_training_steps": 2, "trainer.save_freq": -1}  # test_freq=2 is within two steps
    assert settings_of_run(configuration(), []) == OF_THE_HOST | steps


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("reward.num_workers=3", ["reward.num_workers"]),
        ("trainer.val_before_train=True", ["trainer.val_before_train"]),
        ("+ray_kwargs.ray_init.include_dashboard=True", ["ray_kwargs.ray_init.include_dashboard"]),
        ("trainer.total_training_steps=30", ["trainer.total_training_steps", "trainer.save_freq"]),
    ],
)
def test_what_a_user_sets_is_kept(word, kept):
    found = settings_of_run(configuration(word), [word])
    assert not set(kept) & set(found)
    whole = settings_of_run(configuration(), [])
    assert found == {key: value for key, value in whole.items() if key not in kept}


def test_a_logger_whose_package_is_not_here_is_left_out(monkeypatch):
    monkeypatch.setattr(worker_groups.importlib.util, "find_spec", lambda name: None if name == "wandb" else object())
    for loggers, found in (("[console,wandb]", ["console"]), ("[wandb]", ["console"]), ("[file,mlflow]", None)):
        word = f"trainer.logger={loggers}"
        assert settings_of_run(configuration(word), [word]).get("trainer.logger") == found


@pytest.mark.parametrize(
    ("possible", "words", "expected"),
    [
        ("8", [], None),
        ("7", [], 2),
        ("1", [], 2),
        ("", [], None),
        ("8", ["trainer.nnodes=2"], 2),
        ("1", ["actor_rollout_ref.rollout.pipeline_model_parallel_size=2"], 4),
        ("1", ["trainer.n_gpus_per_node=2"], None),
    ],
)
def test_the_workers_of_one_engine_run_where_all_do_not_fit(possible, words, expected):
    assert chosen_ranks(configuration(*words), {RANKS_POSSIBLE: possible}) == expected
    assert chosen_ranks(configuration(*words), {RANKS_POSSIBLE: possible, RANKS_RUN: "8"}) is None


def test_a_command_begins_with_its_settings_and_its_workers(monkeypatch, tmp_path):
    monkeypatch.setenv(PROCESSES_VARIABLE, str(tmp_path))
    monkeypatch.setenv(RANKS_POSSIBLE, "1")
    monkeypatch.setenv(RANKS_RUN, "")
    monkeypatch.setattr(sys, "argv", ["main_ppo.py", "reward.num_workers=8"])
    module = ModuleType("device")
    module.auto_set_device = lambda config: None
    worker_groups.settle_configurations(module)
    of_another_trainer = OmegaConf.create({"trainer": {"total_training_steps": None}})
    module.auto_set_device(of_another_trainer)
    assert (of_another_trainer.trainer.total_training_steps, settings_of(tmp_path)) == (None, ())
    config = configuration()
    module.auto_set_device(config)
    assert config.ray_kwargs.ray_init.include_dashboard is False
    assert (config.reward.num_workers, config.data.dataloader_num_workers) == (8, 0)
    assert "trainer.total_training_steps=2" in settings_of(tmp_path)
    assert (choice_of(tmp_path), worker_groups.os.environ[RANKS_RUN]) == (2, "2")
    assert choice_of(Path(tmp_path / "none")) is None


def test_vllm_loads_nothing_from_a_folder_that_the_job_made(tmp_path):
    def load_weights(self: object, model: object, config: Any) -> str:
        return f"loaded {config.model}"

    module = ModuleType("default_loader")
    module.DefaultModelLoader = type("DefaultModelLoader", (), {"load_weights": load_weights})
    worker_groups.load_no_weights(str(tmp_path))(module)
    loader = module.DefaultModelLoader()
    assert loader.load_weights(None, SimpleNamespace(model=str(tmp_path / "models" / "Qwen--Qwen3-8B"))) is None
    assert loader.load_weights(None, SimpleNamespace(model="/checkpoints/mine")) == "loaded /checkpoints/mine"
