"""Phases that are recognised from outside, in scripts that know nothing of it."""

import sys
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pytest
import torch

from profiler.domain.memory import Phase
from profiler.scripts.running import Script, ScriptEnd, run_script
from profiler.substitutes import SubstituteOptions, substitutes

PROGRAMS = Path(__file__).parent / "programs"
LOAD, SCORE, ROLLOUT, REWARD = Phase.LOAD, Phase.SCORE, Phase.ROLLOUT, Phase.REWARD
FORWARD, BACKWARD, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
EVALUATION, CHECKPOINT = Phase.EVALUATION, Phase.CHECKPOINT


class Noting:
    """A session that keeps everything it is notified of."""

    def __init__(self):
        self.seen = []
        self.models = []
        self.trained = []
        self.optimizers = []

    @contextmanager
    def running(self):
        self.seen.append("begins")
        try:
            yield
        finally:
            self.seen.append("ends")

    def enter(self, phase):
        self.seen.append(phase)

    def model_found(self, model):
        self.models.append(model)

    def model_trained(self, model):
        self.trained.append(model)

    def optimizer_found(self, optimizer):
        self.optimizers.append(optimizer)

    def step_done(self, step):
        self.seen.append(step)

    @property
    def phases(self):
        return [phase for phase, _ in groupby(each for each in self.seen if isinstance(each, Phase))]


def run(name, *arguments, steps=None) -> tuple[Noting, ScriptEnd]:
    session = Noting()
    return session, run_script(Script(path=PROGRAMS / name, arguments=arguments, steps=steps), session)


def test_a_script_that_catches_its_end_has_ended_by_its_steps(tmp_path):
    program = tmp_path / "catching.py"
    steps = "while True: model(batch).sum().backward(); optimizer.step()"
    program.write_text(
        "import torch\nmodel, batch = torch.nn.Linear(2, 2), torch.ones(1, 2)\n"
        f"optimizer = torch.optim.SGD(model.parameters())\ntry:\n    {steps}\nexcept SystemExit:\n    pass\n"
    )
    _, end = run(program, steps=2)
    assert end == ScriptEnd(exit_code=0, ended_by_steps=True, steps_run=2, backwards_run=2)


def test_a_script_without_an_optimizer_steps_where_it_clips(tmp_path):
    program = tmp_path / "by_hand.py"
    program.write_text(
        "import torch\nmodel, batch = torch.nn.Linear(2, 2), torch.ones(1, 2)\n"
        "while True:\n    model.zero_grad()\n    model(batch).sum().backward()\n"
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "    for each in model.parameters():\n        each.data.add_(each.grad, alpha=-0.1)\n"
    )
    session, end = run(program, steps=2)
    assert end == ScriptEnd(exit_code=0, ended_by_steps=True, steps_run=2, backwards_run=2)
    assert session.phases == [LOAD, FORWARD, BACKWARD, OPTIMIZER, FORWARD, BACKWARD, OPTIMIZER]


MICRO_BATCHES = [SCORE, FORWARD, BACKWARD, SCORE, FORWARD, BACKWARD]


def test_a_plain_loop_has_its_phases_in_order():
    session, end = run("plain_loop.py", "--steps=2")
    assert session.seen == [
        "begins",
        LOAD,
        EVALUATION,
        *MICRO_BATCHES,
        OPTIMIZER,
        1,
        *MICRO_BATCHES,
        OPTIMIZER,
        2,
        "ends",
    ]
    assert end == ScriptEnd(exit_code=0, ended_by_steps=False, steps_run=2, backwards_run=4)
    assert [type(model) for model in session.models] == [torch.nn.Sequential, torch.nn.Linear]
    assert [type(model) for model in session.trained] == [torch.nn.Sequential]
    assert [type(optimizer) for optimizer in session.optimizers] == [torch.optim.AdamW]


def test_steps_end_a_plain_loop_in_good_order(tmp_path):
    note = tmp_path / "note"
    session, end = run("plain_loop.py", f"--note={note}", f"--checkpoint={tmp_path / 'c.pt'}", steps=3)
    assert end == ScriptEnd(exit_code=0, ended_by_steps=True, steps_run=3, backwards_run=6)
    assert note.read_text().split("\n")[:-1] == ["step", "step", "step", "finally"]
    assert session.seen[-4:] == [OPTIMIZER, 3, CHECKPOINT, "ends"]


def test_steps_beyond_the_end_do_nothing():
    _, end = run("plain_loop.py", "--steps=2", steps=2)
    assert (end.ended_by_steps, end.steps_run) == (False, 2)


def test_a_reference_model_within_the_loss_is_no_forward_of_its_own():
    session, _ = run("reference_within_the_loss.py")
    assert session.phases == [LOAD, *([FORWARD, SCORE, FORWARD, BACKWARD, OPTIMIZER] * 2)]


def test_a_closure_runs_before_the_step():
    session, end = run("step_with_closure.py", steps=2)
    assert session.seen == [
        "begins", LOAD, FORWARD, BACKWARD, OPTIMIZER, 1, FORWARD, BACKWARD, OPTIMIZER, 2, "ends"
    ]  # fmt: skip
    assert end.ended_by_steps


def test_optimizers_that_step_in_backward_count_once():
    session, end = run("step_in_backward.py")
    assert session.seen == [
        "begins",
        LOAD,
        *(each for n in (1, 2, 3) for each in (FORWARD, BACKWARD, OPTIMIZER, n)),
        "ends",
    ]
    assert (end.steps_run, end.backwards_run) == (3, 3)


def test_modules_that_run_again_in_backward_belong_to_it():
    session, end = run("checkpointed.py")
    assert session.phases == [LOAD, *([FORWARD, BACKWARD, OPTIMIZER] * 2)]
    assert end.backwards_run == 2


def test_everything_is_as_before_afterwards():
    before = (sys.argv, list(sys.path), list(sys.meta_path), torch.autograd.backward, torch.save)
    run("plain_loop.py", "--steps=1")
    assert (sys.argv, list(sys.path), list(sys.meta_path), torch.autograd.backward, torch.save) == before
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks


def test_a_script_has_its_own_arguments_and_folder(tmp_path, capsys):
    (tmp_path / "neighbour.py").write_text("value = 7\n")
    script = tmp_path / "main.py"
    script.write_text("import sys, neighbour\nprint(__name__, sys.argv[1:], neighbour.value)\nsys.exit('no')\n")
    end = run_script(Script(path=script, arguments=["a", "--b"], steps=None), Noting())
    assert capsys.readouterr() == ("__main__ ['a', '--b'] 7\n", "no\n")
    assert end.exit_code == 1


def test_an_error_of_the_script_is_raised_after_its_end(tmp_path):
    script = tmp_path / "main.py"
    script.write_text("raise ValueError('mine')\n")
    session = Noting()
    with pytest.raises(ValueError, match="mine"):
        run_script(Script(path=script, arguments=[], steps=None), session)
    assert session.seen == ["begins", LOAD, "ends"]


@pytest.mark.slow
def test_a_script_of_transformers(tmp_path):
    session, end = run("trainer.py", str(tmp_path), steps=3)
    step = [FORWARD, BACKWARD] * 2 + [OPTIMIZER]
    assert session.phases == [LOAD, *step, *step, EVALUATION, CHECKPOINT, *step]
    assert (end.ended_by_steps, end.steps_run, end.unseen) == (True, 3, ())


@pytest.mark.slow
def test_a_script_of_trl(tmp_path):
    with substitutes(SubstituteOptions(with_values=True)):
        session, end = run("grpo.py", str(tmp_path), steps=2)
    assert session.phases == [LOAD, *([ROLLOUT, SCORE, REWARD, FORWARD, BACKWARD, OPTIMIZER] * 2)]
    assert (end.ended_by_steps, end.steps_run) == (True, 2)
