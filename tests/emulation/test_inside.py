"""What runs inside the emulated process, as far as it needs no card."""

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

from profiler.emulation.card import Marks, marks_of_file, marks_of_this_process
from profiler.emulation.inside.prepare import Answers, listening_process, note_rank, own_keys
from profiler.emulation.inside.triton_kernels import (
    LOOKED_AT,
    SPECIAL_TOKENS,
    KernelNotes,
    add_up_tokens,
    avoid_special_tokens,
    count_tokens,
    is_result,
    update_in_place,
)
from profiler.emulation.launch import STARTUP_FOLDER
from profiler.seams.patching import around_import


def test_other_ranks_put_what_this_one_puts():
    answers = Answers(8)
    answers.put("worker_0/address", b"here")
    assert answers.value("worker_3/address") == b"here"
    assert answers.has("worker_7/address")
    assert not answers.has("worker_3/port")
    assert own_keys("a1/b22") == ["a0/b22", "a1/b0"]


def test_another_rank_that_is_alone_is_not_rank_0():
    answers = Answers(8, rank=3)
    answers.put("worker_3/address", b"here")
    assert answers.value("worker_0/address") == b"here"
    assert own_keys("a1/b22", 3) == ["a3/b22", "a1/b3"]
    identifier = "default_pg/0//cuda//0"  # of NCCL's communicator, which rank 0 puts
    assert answers.value(identifier) == bytes(128)
    assert not Answers(8).has(identifier)
    assert not answers.has("default_pg/0//cpu//0")


def test_every_rank_adds_the_same():
    answers = Answers(8)
    assert [answers.add("joined", 1), answers.add("joined", 0), answers.add("joined", 2)] == [8, 8, 24]


def test_a_key_that_no_rank_sets_is_waited_for_and_then_an_error():
    answers = Answers(2)
    assert not answers.wait_for("never", timedelta(seconds=0.01))
    thread = threading.Thread(target=lambda: (time.sleep(0.05), answers.put("soon", b"1")))
    thread.start()
    assert answers.value("soon") == b"1"
    thread.join()
    assert answers.remove("soon")
    assert not answers.remove("soon")


def test_actions_run_around_the_first_import(tmp_path, monkeypatch):
    (tmp_path / "imported_once.py").write_text("order.append('module')\nvalue = 1\n")
    (tmp_path / "order_of_import.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    order: list[object] = []
    monkeypatch.setattr("builtins.order", order, raising=False)
    around_import(
        "imported_once", before=lambda: order.append("before"), after=lambda module: order.append(module.value)
    )
    hooks = len(sys.meta_path)
    __import__("imported_once")
    __import__("imported_once")
    assert order == ["before", "module", 1]
    assert len(sys.meta_path) == hooks - 1


def tensor(*, is_cuda: bool = True, floats: bool = True, contiguous: bool = True, elements: int = 4):
    return SimpleNamespace(
        is_cuda=is_cuda,
        numel=lambda: elements,
        is_contiguous=lambda: contiguous,
        is_floating_point=lambda: floats,
        data_ptr=lambda: 4096,
        element_size=lambda: 8,
    )


def test_results_of_a_kernel_are_its_tensors_or_its_floats_if_it_was_looked_at():
    assert is_result(tensor(floats=False), floats_only=False)
    assert not is_result(tensor(floats=False), floats_only=True)
    assert is_result(tensor(), floats_only=True)
    assert not is_result(tensor(is_cuda=False), floats_only=False)
    assert not is_result(tensor(elements=0), floats_only=False)
    assert not is_result(7, floats_only=False)


def test_a_launch_notes_its_results_under_the_name_of_the_kernel():
    noted = []

    class Card:
        def em_values_unknown(self, address, size, name):
            noted.append((address, size, name.value))

    Card.em_values_unknown.argtypes = None
    notes = KernelNotes.__new__(KernelNotes)
    notes._card, notes._names = Card(), {}
    notes.launched("elsewhere", "_count_kernel", iter([tensor(floats=False), 3]))
    module, names = next(iter(LOOKED_AT.items()))
    notes.launched(module, min(names), iter([tensor(floats=False)]))
    assert noted == [(4096, 32, b"Triton kernel _count_kernel")]


def test_kernels_that_were_looked_at_are_those_of_trl():
    trl = pytest.importorskip("trl.kernels.chunked_logprob")
    names = LOOKED_AT["trl.kernels.chunked_logprob"]
    assert all(hasattr(trl, name) for name in names)


def test_marks_are_read_from_the_file_of_a_job(tmp_path):
    path = tmp_path / "marks"
    assert marks_of_file(path) == Marks()
    path.write_text(
        "7\tvalue\tLong of a kernel\n8\tvalue\tLong of a kernel\n7\tfloat\tFloat of aten::mean\n"
        "7\tassumption\tbalanced\n7\tentry point\tlibcuda:cuX\n"
    )
    found = marks_of_file(path)
    assert found == Marks(
        values_read=("Long of a kernel",), assumptions=("balanced",), unseen_entry_points=("libcuda:cuX",)
    )
    assert (found.values, Marks().values) == ("Long of a kernel", "complete")
    assert marks_of_this_process() is None


def run_python(tmp_path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\n")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{STARTUP_FOLDER}:{tmp_path}", **variables}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_sitecustomize_of_the_environment_still_runs(tmp_path):
    assert run_python(tmp_path, "print('program')").stdout == "theirs\nprogram\n"


def test_a_process_that_cannot_be_prepared_ends_before_its_program(tmp_path):
    folder = str(STARTUP_FOLDER.parents[1])
    done = run_python(tmp_path, "print('program')", EMULATED_LIBRARIES="/none", EMULATED_PROFILER=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("The process could not be prepared for the emulated card: FileNotFoundError")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("before", "after"), [("", "/card"), ("/a:/b", "/card:/a:/b"), ("/card:/a", "/card:/a")])
def test_the_emulated_libraries_are_looked_for_first(tmp_path, before, after):
    """Also where a script has replaced the variable: the process begins again, with its arguments."""
    inside = tmp_path / "profiler" / "emulation" / "inside"
    inside.mkdir(parents=True)
    for folder in (inside.parents[1], inside.parent, inside):
        (folder / "__init__.py").touch()
    (inside / "prepare.py").write_text("def prepare(found, follow): print(found['LD_LIBRARY_PATH'])\n")
    variables = {"EMULATED_LIBRARIES": "/card", "EMULATED_PROFILER": str(inside.parents[1]), "LD_LIBRARY_PATH": before}
    done = run_python(tmp_path, "import sys; print(sys.orig_argv[1:2], sys.argv)", **variables)
    assert done.stdout == f"{after}\ntheirs\n['-c'] ['-c']\n", done.stderr


STEPS = """
import sys, threading
import sitecustomize, torch
phases = []
sitecustomize.follow_phases(phases.append)
def train():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(1, 5):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        print(step, flush=True)
if sys.argv[1] == "thread":
    worker = threading.Thread(target=train); worker.start(); worker.join()
else:
    train()
"""


@pytest.mark.parametrize(
    ("program", "given", "steps", "noted"),
    [
        ("main", "2", 2, "steps=2\n"),
        ("thread", "2", 4, ""),
        ("default_worker.py", "2", 4, ""),
        pytest.param("main", "", 4, "", marks=pytest.mark.matrix),
    ],
)
def test_a_process_that_trains_ends_after_its_steps(tmp_path, program, given, steps, noted):
    """Not in a thread, which would leave its program waiting, and not a worker of Ray, whose driver waits for it."""
    script = tmp_path / (program if program.endswith(".py") else "train.py")
    script.write_text(STEPS)
    variables = {"EMULATED_PROFILER": str(STARTUP_FOLDER.parents[1]), "PYTHONPATH": str(STARTUP_FOLDER)}
    variables |= {"EMULATED_STEPS": given, "EMULATED_PROCESSES": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, str(script), program]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, [str(step + 1) for step in range(steps)]), done.stderr
    note = tmp_path / "settings"
    assert (note.read_text() if note.exists() else "") == noted


GROUP = """
import atexit, sitecustomize, torch
from torch import distributed
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
atexit.register(lambda: print("in a group:", distributed.is_initialized()))
sitecustomize.follow_phases(lambda phase: None)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters())
for step in range(2):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def test_a_process_that_ends_after_its_steps_leaves_its_group(tmp_path):
    """Threads of a group of NCCL abort a process that exits before them, one time in three."""
    variables = {"EMULATED_PROFILER": str(STARTUP_FOLDER.parents[1]), "PYTHONPATH": str(STARTUP_FOLDER)}
    variables |= {"EMULATED_STEPS": "1", "EMULATED_PROCESSES": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", GROUP], env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "in a group: False\n"), done.stderr


def test_deepspeeds_adam_needs_no_compiler():
    """It is called with an overflow buffer, lists of tensors and numbers, and returns nothing."""

    class Builder:
        def load(self, verbose: bool = True) -> object:
            raise RuntimeError("nvcc is missing")

    builder = SimpleNamespace(FusedAdamBuilder=Builder)
    update_in_place(builder)
    assert Builder().load().multi_tensor_adam(2048, [], [[]], 1e-3) is None
    assert Builder().load(verbose=False).multi_tensor_adam() is None


def test_tokens_of_experts_are_counted_and_added_up_as_the_kernels_do():
    import torch

    chosen = torch.tensor([[0, 2], [2, 1], [2, 0], [2, 1], [0, 2]], dtype=torch.int32)
    table, starts, tiles = (torch.full(shape, -1, dtype=torch.int32) for shape in ((4, 3), (5,), (5,)))
    given = {"topk_indices_ptr": chosen, "partial_sum_ptr": table, "T": 5, "K": 2, "E": 4, "TOKENS_PER_TILE": 2}
    count_tokens(given)
    assert table.tolist() == [[1, 1, 1], [1, 1, 0], [2, 2, 1], [0, 0, 0]]
    add_up_tokens(
        {
            "expert_freq_ptr": table.sum(1, dtype=torch.int32),
            "expert_freq_offs_ptr": starts,
            "expert_tile_offset_ptr": tiles,
            "partial_sum_ptr": table,
            "BLOCK_M_TOKEN": 4,
        }
    )
    assert starts.tolist() == [0, 3, 5, 10, 10]
    assert tiles.tolist() == [0, 1, 2, 4, 4]
    assert table.tolist() == [[0, 1, 2], [0, 1, 2], [0, 2, 4], [0, 0, 0]]


def test_draws_of_both_kinds_avoid_the_same_tokens():
    """A kernel of vLLM looks for them, and the next draw in place of an operator has them too."""
    passed_on, callbacks = [], []
    values = SimpleNamespace(
        emulated_values_on_draw=callbacks.append,
        emulated_values_special=lambda tokens, count, _sizes, _count: passed_on.append(set(tokens[:count])),
    )
    avoid_special_tokens(values)
    callbacks[0]()
    SPECIAL_TOKENS.add(SimpleNamespace(eos_token_id=123_456))
    SPECIAL_TOKENS.look()
    callbacks[0]()
    assert [123_456 in tokens for tokens in passed_on] == [False, True]


def test_the_rank_is_that_of_all_processes_of_torch():
    """A group of NCCL need not be one of equal ranks: a trainer and the engine that it sends weights to are one."""
    noted: list[tuple[int, int]] = []
    c10d = SimpleNamespace(init_process_group=lambda *_: None, get_rank=lambda: 1, get_world_size=lambda: 4)
    note_rank(SimpleNamespace(em_rank=lambda *rank: noted.append(rank)))(c10d)
    assert noted == []
    c10d.init_process_group("nccl")
    assert noted == [(1, 4)]


BINDS = """
import socket, sys
from profiler.emulation.inside.prepare import refuse_ports_of_others
refuse_ports_of_others("/job")
with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(sys.argv[2]))
    try: server.bind(("127.0.0.1", int(sys.argv[1])))
    except OSError as error: print(error.errno, error.strerror)
    else: print("bound")
"""


def bound(port: int, *, shares: bool) -> str:
    words = [sys.executable, "-c", BINDS, str(port), str(int(shares))]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("shares", [True, False])
def test_a_port_of_another_job_is_in_use(shares):
    """Both servers would get requests of both jobs: the kernel allows it if both of them ask for it."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert bound(port, shares=True) == "bound"  # nobody listens yet
        server.listen()
        said = f"{errno.EADDRINUSE} port {port} is in use by process {os.getpid()}: end it, or choose another port"
        assert bound(port, shares=shares) == said
    assert listening_process(port) is None
    assert bound(port, shares=shares) == "bound"


LISTENS = """
import socket
with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("127.0.0.1", 0)); server.listen()
    print(server.getsockname()[1], flush=True); input()
"""


def test_processes_of_a_job_share_a_port():
    own = {**os.environ, "EMULATED_PROCESSES": "/job"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", LISTENS], env=own, **pipes) as other:
        port = int(other.stdout.readline())
        assert listening_process(port) == other.pid
        assert bound(port, shares=True) == "bound"
        other.communicate("\n")
