"""Phases of a process of a command: whichever thread works, and calls of engines and of what verl starts."""

import asyncio
import inspect
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
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
