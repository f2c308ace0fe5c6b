"""Every public name of `torch.cuda`, its memory and `torch.accelerator`: answered, without effect, or refused."""

import inspect
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Phase
from profiler.simulation.script.session import SimulatedScript

GPU = KNOWN_GPUS["h100-80gb"]


@pytest.fixture(scope="module")
def script() -> Iterator[SimulatedScript]:
    session = SimulatedScript(GPU, alloc_conf="", add_model=lambda _: None, add_optimizer=lambda _: None)
    with session.running():
        session.enter(Phase.FORWARD)
        yield session


def one() -> torch.Tensor:
    return torch.ones(4, device="cuda")


def entered(manager: Any) -> None:
    """Enter a context and leave it: autocast would be on for all later tests."""
    with manager:
        pass


Call = Callable[[], Any]

ANSWERED: dict[str, Call] = {
    "can_device_access_peer": lambda: torch.cuda.can_device_access_peer(0, 0),
    "check_error": lambda: torch.cuda.check_error(0),
    "device": lambda: entered(torch.cuda.device(0)),
    "device_of": lambda: entered(torch.cuda.device_of(one())),
    "ExternalStream": lambda: torch.cuda.ExternalStream(1).wait_stream(torch.cuda.current_stream()),
    "get_stream_from_external": lambda: torch.cuda.get_stream_from_external(1).query(),
    "manual_seed": lambda: torch.cuda.manual_seed(1),
    "manual_seed_all": lambda: torch.cuda.manual_seed_all(1),
    "set_device": lambda: torch.cuda.set_device("cuda:0"),
    "set_per_process_memory_fraction": lambda: torch.cuda.set_per_process_memory_fraction(1.0),
    "set_rng_state": lambda: torch.cuda.set_rng_state(torch.cuda.get_rng_state()),
    "set_rng_state_all": lambda: torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all()),
    "set_stream": lambda: torch.cuda.set_stream(torch.cuda.Stream()),
    "set_sync_debug_mode": lambda: torch.cuda.set_sync_debug_mode("warn"),
    "stream": lambda: entered(torch.cuda.stream(torch.cuda.Stream())),
    "StreamContext": lambda: entered(torch.cuda.StreamContext(torch.cuda.Stream())),
}
"""Calls of functions with arguments; functions without any are called as they are."""

REFUSED: dict[str, Call] = {
    **{
        name: lambda name=name: getattr(torch.cuda, name)()  # type: ignore[misc]
        for name in (
            "CUDAGraph", "graph", "make_graphed_callables", "graph_pool_handle", "MemPool", "CUDAPluggableAllocator",
            "GreenContext", "use_mem_pool", "change_current_allocator", "caching_allocator_alloc",
            "caching_allocator_delete", "caching_allocator_disabled", "caching_allocator_enable", "current_blas_handle",
            "current_solver_handle",
        )
    },
    **{
        name: lambda name=name: getattr(torch.cuda, name)(3)  # type: ignore[misc]
        for name in torch.cuda.__all__
        if name.endswith("Storage")
    },
}  # fmt: skip

CONSTANTS = ("default_generators", "has_half", "has_magma")
"""Values that are no functions."""

TORCHS_OWN = ("CudaError", "DeferredCudaCallError", "cudaStatus")
"""Classes of torch that a script catches or compares with; they ask nothing of a card."""

MODULES: dict[str, tuple[Call, ...]] = {
    "amp": (lambda: entered(torch.cuda.amp.autocast()),),
    "graphs": (lambda: torch.cuda.graphs.is_current_stream_capturing(),),
    "memory": (lambda: torch.cuda.memory.memory_stats()["num_ooms"],),
    "nvtx": (
        lambda: torch.cuda.nvtx.range_push("a"),
        lambda: torch.cuda.nvtx.range_pop(),
        lambda: torch.cuda.nvtx.mark("a"),
        lambda: torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("a")),
        lambda: entered(torch.cuda.nvtx.range("a")),
    ),
    "profiler": (lambda: entered(torch.cuda.profiler.profile()),),
    "random": (
        lambda: torch.cuda.random.set_rng_state(torch.cuda.random.get_rng_state()),
        lambda: torch.cuda.random.set_rng_state_all(torch.cuda.random.get_rng_state_all()),
        lambda: torch.cuda.random.manual_seed(torch.cuda.random.initial_seed()),
    ),
    "sparse": (lambda: torch.cuda.sparse,),
    "streams": (lambda: torch.cuda.streams.Stream().synchronize(),),
    "tunable": (lambda: torch.cuda.tunable.is_enabled(),),
}
"""Modules, with calls that are answered."""

REFUSING_MODULES: dict[str, Call] = {
    "jiterator": lambda: torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T a) { return a; }"),
    "nccl": lambda: torch.cuda.nccl.all_reduce([one()]),
    "tunable": lambda: torch.cuda.tunable.enable(),
}

TORCHS_IMPORTS = {
    "Any", "Callable", "Device", "NewType", "Optional", "TYPE_CHECKING", "cast", "classproperty", "importlib",
    "lru_cache", "os", "platform", "pynvml", "threading", "torch", "traceback", "warnings", "DEVICE_REQUIREMENT",
    "PYTORCH_RELEASES_CODE_CC", "AcceleratorError", "OutOfMemoryError", "gds", "green_contexts",
}  # fmt: skip
"""Names without an underscore in `dir(torch.cuda)` that torch does not declare."""

PUBLIC = sorted(
    {name for name in dir(torch.cuda) if not name.startswith("_")} - TORCHS_IMPORTS | set(torch.cuda.memory.__all__)
)


def test_every_public_name_has_its_decision() -> None:
    known = {*REFUSED, *ANSWERED, *CONSTANTS, *TORCHS_OWN, *MODULES, *REFUSING_MODULES}
    left = [name for name in PUBLIC if name not in known and not _is_called_plainly(name)]
    assert left == []


@pytest.mark.parametrize("name", sorted({name for name in PUBLIC if name not in {*REFUSED, *CONSTANTS, *TORCHS_OWN}}))
def test_a_name_is_answered(script: SimulatedScript, name: str) -> None:
    if name in MODULES:
        for call in MODULES[name]:
            call()
    elif name in ANSWERED:
        ANSWERED[name]()
    elif name not in REFUSING_MODULES:
        getattr(torch.cuda, name)(*((3,) if name.endswith("Tensor") else ()))


@pytest.mark.parametrize("name", [*REFUSED, *REFUSING_MODULES])
def test_a_refusal_names_the_function(script: SimulatedScript, name: str) -> None:
    call = REFUSING_MODULES.get(name) or REFUSED[name]
    with pytest.raises(UnsupportedTrialError, match=rf"^torch\.cuda\.{name}.* of the script cannot be simulated"):
        call()


def test_a_share_of_the_card_is_refused(script: SimulatedScript) -> None:
    with pytest.raises(UnsupportedTrialError, match=r"^torch\.cuda\.set_per_process_memory_fraction of the script"):
        torch.cuda.set_per_process_memory_fraction(0.5)


def _is_called_plainly(name: str) -> bool:
    """Return whether the name is a function that can be called without an argument, or a type of tensors."""
    found = getattr(torch.cuda, name, None)
    if name.endswith("Tensor"):
        return True
    if inspect.ismodule(found) or found is None:
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return False
    plain = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(each.default is not each.empty or each.kind in plain for each in parameters)


ACCELERATOR: dict[str, Call] = {
    "device_index": lambda: entered(torch.accelerator.device_index(0)),
    "set_device_idx": lambda: torch.accelerator.set_device_idx(0),
    "set_device_index": lambda: torch.accelerator.set_device_index(0),
    "set_stream": lambda: torch.accelerator.set_stream(torch.cuda.current_stream()),
}
FAILS_ON_CUDA = ("Graph", "get_device_capability")
"""torch has no answer for CUDA."""


@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("name", torch.accelerator.__all__)
def test_a_name_of_the_accelerator_is_answered_or_refused(script: SimulatedScript, name: str) -> None:
    call = ACCELERATOR.get(name) or getattr(torch.accelerator, name)
    if name in FAILS_ON_CUDA:
        with pytest.raises(RuntimeError, match="support"):
            call()
    else:
        call()


_DEFINED_IN = {name: sys.modules.get(getattr(getattr(torch.cuda, name, None), "__module__", "")) for name in PUBLIC}
"""Before a session: the module that defines each name."""


def test_a_name_is_replaced_in_the_module_that_defines_it(script: SimulatedScript) -> None:
    """transformers saves the state of random numbers by `torch.cuda.random`, at each checkpoint.

    `empty_cache` stays torch's own: what it calls in `torch._C` is replaced.
    """
    defined = {
        name: vars(module)[name]
        for name, module in _DEFINED_IN.items()
        if module is not None and module is not torch.cuda and name in vars(module) and name != "empty_cache"
    }
    assert {"get_rng_state", "manual_seed_all", "memory_allocated", "Stream", "CUDAGraph"} <= set(defined)
    assert [name for name, found in defined.items() if found is not getattr(torch.cuda, name)] == []


def test_counters_have_every_key_of_torch(script: SimulatedScript) -> None:
    stats = torch.cuda.memory_stats()
    for key in ("active_bytes.all.current", "inactive_split_bytes.small_pool.peak", "segment.large_pool.allocated"):
        assert stats[key] >= 0
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (0, 0)
    assert torch.accelerator.memory_stats()["requested_bytes.all.peak"] == stats["requested_bytes.all.peak"]
    assert "CUDA OOMs: 0" in torch.cuda.memory_summary()
    assert torch.cuda.memory.memory_allocated() == torch.cuda.memory_allocated() == torch.accelerator.memory_allocated()


def test_a_history_is_recorded_from_where_the_script_begins_it(script: SimulatedScript, tmp_path: Path) -> None:
    before = torch.empty(100, device="cuda")
    torch.cuda.memory._record_memory_history(max_entries=1000)
    after = torch.empty(3000, device="cuda")
    torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    found = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert [entry["size"] for entry in found["device_traces"][0] if entry["action"] == "alloc"] == [after.nbytes]
    torch.cuda.memory._record_memory_history(enabled=None)
    assert torch.cuda.memory._snapshot()["device_traces"] == [[]]
    in_use = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    assert {before.nbytes, after.nbytes} <= {block["requested_size"] for block in in_use}


def test_sensors_are_noted(script: SimulatedScript) -> None:
    assert torch.cuda.utilization() == torch.cuda.temperature() == 0
    assert "sensors of the card" in " ".join(script.reads.phrases())


def test_properties_are_those_of_the_card(script: SimulatedScript) -> None:
    """As torch's CUDA build shows them for this card."""
    properties = torch.cuda.get_device_properties(0)
    found = (
        properties.shared_memory_per_block, properties.shared_memory_per_block_optin,
        properties.shared_memory_per_multiprocessor, properties.regs_per_multiprocessor, properties.warp_size,
        properties.max_threads_per_multi_processor, properties.multi_processor_count, properties.max_threads_per_block,
    )  # fmt: skip
    assert found == (49152, 232448, 233472, 65536, 32, 2048, 132, 1024)


def test_older_names_of_types_are_tensors_on_the_card(script: SimulatedScript) -> None:
    found = torch.cuda.LongTensor([1, 2])
    assert found.is_cuda
    assert found.tolist() == [1, 2]
    assert isinstance(found, torch.cuda.LongTensor)
    assert not isinstance(torch.zeros(2), torch.cuda.FloatTensor)
    assert torch.cuda.FloatTensor(3, 4).shape == (3, 4)
    assert found.type() == "torch.cuda.LongTensor"
    assert torch.zeros(2).type("torch.cuda.HalfTensor").type(torch.cuda.FloatTensor).dtype is torch.float32
    assert torch.zeros(2).type(torch.int64).dtype is torch.int64


def test_a_device_is_the_card_wherever_a_script_names_it(script: SimulatedScript) -> None:
    tensor = one()
    assert tensor.get_device() == 0
    assert torch.cuda.memory_allocated(tensor.device) == torch.cuda.memory_allocated("cuda:0") > 0
    sampled = torch.rand(3, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1))
    assert sampled.is_cuda
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(3).is_cuda
    finally:
        torch.set_default_device(None)
    assert not torch.zeros(3).is_cuda


def test_the_device_of_a_tensor_is_the_card(script: SimulatedScript) -> None:
    """For a script; libraries that the simulation runs see `meta`, also where they only pass it on."""
    tensor, layer = one(), torch.nn.Linear(2, 2).cuda()
    assert tensor.device == layer.weight.device == torch.device("cuda:0")
    assert not tensor.is_meta
    assert torch.zeros(2).device == torch.device("cpu")
    assert torch.zeros(2, device=tensor.device).is_cuda
    assert torch.tensor([3], device=tensor.device).tolist() == [3]
    assert torch.nn.Linear(2, 2).to(tensor.device).weight.is_cuda
    library = {"__name__": "transformers.modeling_utils"}
    exec("def device(model): return next(each.device for each in model.parameters())", library)
    exec("def forward(model): return next(each.device for each in model.parameters())", library)
    assert library["device"](layer) == torch.device("cuda:0")
    assert library["forward"](layer) == torch.device("meta")


def test_unknown_numbers_are_finite(script: SimulatedScript) -> None:
    many = torch.ones(1024, 2048, device="cuda")  # too large for host values
    for tensor in (one(), many):
        unknown = tensor * torch.randn((), device="cuda")
        assert torch.isfinite(unknown.sum())
        assert torch.isfinite(unknown).all()
        assert unknown.isfinite().all(dim=0).all()
        assert torch.all(torch.isfinite(unknown))
        assert not torch.isnan(unknown).any()
    known = torch.tensor([1.0, float("nan")]).cuda()
    assert torch.isfinite(known).tolist() == [True, False]
    assert not torch.isfinite(known).all()


def test_tensors_are_compared_by_what_a_script_would_read(script: SimulatedScript) -> None:
    unknown, known = torch.randn(2, device="cuda"), torch.tensor([1.0, 2.0]).cuda()
    assert torch.equal(unknown, unknown.clone())
    assert torch.allclose(known, torch.tensor([1.0, 2.0], device="cuda"))
    assert not known.equal(torch.tensor([1.0, 3.0], device="cuda"))
    assert not torch.allclose(input=known, other=unknown)
    assert not torch.equal(unknown, unknown[:1])
    big = torch.randn(2000, 2000, device="cuda")
    assert torch.equal(big, big)
