"""Phases of a process of a command: whichever thread works, and calls of engines and of what verl starts."""

import asyncio
import inspect
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from weakref import finalize

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from trl.generation.vllm_generation import VLLMGeneration

from profiler.domain.memory import Phase
from profiler.scripts import hooks
from profiler.scripts.hooks import watched
from profiler.scripts.phase_watch import PhaseWatch
from profiler.scripts.session import PhasesOnly
from profiler.seams import patching
from profiler.seams.libraries import SEAM_OF


def in_a_thread(work) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("any_thread", "phases"),
    [(True, ["load", "forward", "backward", "score"]), (False, ["load"])],
)
def test_an_actor_works_in_another_thread_than_the_first(any_thread, phases):
    """Ray runs the methods of a class with `async` ones outside of the main thread."""
    seen: list[str] = []
    model = torch.nn.Linear(2, 2)

    def work() -> None:
        model(torch.ones(1, 2)).sum().backward()
        with torch.no_grad():
            model.train()(torch.ones(1, 2))

    watch = PhaseWatch(PhasesOnly(lambda phase: seen.append(phase.value)), steps=None, any_thread=any_thread)
    with watched(watch):
        in_a_thread(work)
    assert seen == phases


def test_a_recorder_that_fails_leaves_the_program_alone(monkeypatch, capsys):
    seen: list[Phase] = []
    contents = hooks._Contents.__new__(hooks._Contents)
    contents._enter, contents._phase, contents._records = seen.append, Phase.LOAD, True

    def fails() -> None:
        raise RuntimeError("no such tensor")

    monkeypatch.setattr(contents, "_say", fails)
    contents.enter(Phase.FORWARD)
    contents.enter(Phase.BACKWARD)
    assert seen == [Phase.FORWARD, Phase.BACKWARD]
    said = "What this process holds by category is not known from here on: RuntimeError: no such tensor\n"
    assert capsys.readouterr().err == said


def test_a_thread_that_works_next_to_another_is_not_followed():
    """Such as one that clips gradients of another model while a pass runs."""
    seen: list[Phase] = []
    watch = PhaseWatch(PhasesOnly(seen.append), steps=None, any_thread=True)
    other = torch.nn.Linear(2, 2)

    class Outer(torch.nn.Linear):
        def forward(self, batch):
            in_a_thread(lambda: torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0))
            return super().forward(batch)

    with watched(watch):
        Outer(2, 2)(torch.ones(1, 2))
    assert seen == [Phase.LOAD, Phase.FORWARD]


def test_a_call_that_is_awaited_is_its_phase_to_its_end(monkeypatch):
    owner = SimpleNamespace(__name__="verl.workers.engine_workers:ActorRolloutRefWorker")
    seen: list[Phase] = []
    inside: list[Phase] = []

    async def update_weights(_self: object) -> int:
        await asyncio.sleep(0)
        torch.nn.Linear(2, 2)(torch.ones(1, 2))  # within the call: no phase of its own
        inside.extend(seen)
        return 7

    owner.update_weights = update_weights
    monkeypatch.setattr(hooks, "owner_of", lambda _: owner)
    monkeypatch.setattr(hooks, "problem_of", lambda _: None)
    monkeypatch.setattr(patching, "_require_registered", lambda *_: None)
    monkeypatch.setattr(hooks, "_CALLS", {"torch": (hooks._CALLS_OF_PROCESSES["verl.workers.engine_workers"][1],)})
    with watched(PhaseWatch(PhasesOnly(seen.append), steps=None, any_thread=True)):
        assert asyncio.run(owner.update_weights(None)) == 7
    assert inside == [Phase.LOAD, Phase.SYNC]
    assert owner.update_weights is update_weights


def test_every_call_of_a_process_is_a_seam():
    named = {f"{owner}.{name}" for calls in hooks._CALLS_OF_PROCESSES.values() for owner, name, _ in calls}
    assert named <= SEAM_OF.keys()


def test_a_trainer_sends_weights_and_waits_for_completions():
    """trl's own `VLLMGeneration` with a server: what it asks of its client belongs to these phases."""
    seen: list[str] = []
    asked: dict[str, str] = {}

    class Client:
        def __getattr__(self, name):
            def answer(*_args, **_named):
                asked[name] = seen[-1]
                return {"prompt_ids": [[1]], "completion_ids": [[2], [3]], "logprobs": None}

            return answer

    generation = VLLMGeneration.__new__(VLLMGeneration)
    wanted = inspect.signature(VLLMGeneration.__init__).parameters
    vars(generation).update(dict.fromkeys(wanted), mode="server", vllm_client=Client(), _weight_metadata=None)
    generation.accelerator = SimpleNamespace(is_main_process=True, process_index=0, num_processes=1)
    generation.model = torch.nn.Linear(2, 2)
    generation._dist = SimpleNamespace(is_fsdp=False, gather_params=lambda _: nullcontext())
    watch = PhaseWatch(PhasesOnly(lambda phase: seen.append(phase.value)), steps=None)
    with watched(watch, calls_of=[hooks._CALLS_OF_PROCESSES]) as unseen:
        generation.sync_weights()
        generation.generate([[1], [1]], None, 2)
    assert unseen.sentences == []
    assert seen == ["load", "sync", "rollout"]
    assert asked == {"update_named_params": "sync", "reset_prefix_cache": "sync", "generate": "rollout"}


class Requests(TorchDispatchMode):
    """Requests and frees of the CPU's storages, in the form of torch's recorder of a card."""

    def __init__(self):
        super().__init__()
        self.entries, self.live = [], set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in (each for each in tree_leaves(made) if isinstance(each, torch.Tensor)):
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if storage.nbytes() and address not in self.live:
                self.live.add(address)
                self.entries.append({"action": "alloc", "addr": address, "size": storage.nbytes(), "frames": []})
                finalize(storage, self.freed, address)
        return made

    def freed(self, address):
        self.live.discard(address)
        self.entries.append({"action": "free_requested", "addr": address, "size": 0})


@pytest.fixture
def requests(monkeypatch):
    """Return the requests of a card that is the CPU, until a phase ends; hooks are removed at the end."""
    seen, handles = Requests(), []
    for name in ("register_module_forward_pre_hook", "register_optimizer_step_pre_hook"):
        register = getattr(hooks, name)
        monkeypatch.setattr(hooks, name, lambda hook, register=register: handles.append(register(hook)))
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: call())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **_options: seen.entries.clear())
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"device_traces": [list(seen.entries)]})
    yield seen
    for handle in handles:
        handle.remove()


def test_a_process_says_what_it_holds_by_category(requests):
    """A weight of 256 x 256 floats, its gradient and AdamW's two states, 256 KiB each, and a model that only scores."""
    each, seen = 256 * 256 * 4, {}
    contents = hooks._Contents(lambda _: None, lambda phase, shares: seen.update({phase.value: shares}))
    with requests:
        model, reference = (torch.nn.Linear(256, 256, bias=False) for _ in range(2))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            contents.enter(Phase.SCORE)
            with torch.no_grad():
                reference(torch.ones(256, 256))
            contents.enter(Phase.FORWARD)
            loss = model(torch.ones(256, 256)).sum()
            contents.enter(Phase.BACKWARD)
            loss.backward()
            del loss
            contents.enter(Phase.OPTIMIZER)
            optimizer.step()
            optimizer.zero_grad()
        contents.enter(Phase.CHECKPOINT)
    found = {
        phase: {share.category.value: round(share.size_bytes / each) for share in shares if share.size_bytes > each / 2}
        for phase, shares in seen.items()
    }
    kept = {"weights": 1, "reference": 1, "optimizer_state": 2}
    assert found["score"] == {**kept, "activations": 2}
    assert found["forward"] == {**kept, "activations": 2}
    assert {name: found["backward"][name] for name in (*kept, "gradients")} == {**kept, "gradients": 1}
    assert {name: found["optimizer"][name] for name in (*kept, "gradients")} == {**kept, "gradients": 1}
    assert found["optimizer"].keys() - kept.keys() == {"gradients", "workspace"}
