"""`python -m profiler.run gpus=`: every process of a command is part of its run, however it was started.

On the small driver, in this Python: the processes use the cards through ctypes.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from emulation.building import LIBRARIES, NEW

from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_SIGNAL_BASE, EXIT_SOME_TRIALS_FAILED, EXIT_USAGE
from profiler.domain.memory import MIB
from profiler.domain.runs.other_runs import JobProcess, JobRecord
from profiler.emulation.inside.worker_groups import process_of_another_cluster, refuse_other_clusters
from profiler.emulation.launch import EmulatedPython
from profiler.rendering.runs.page import short_command
from profiler.run import job
from profiler.run.main import main
from profiler.storage.files.typed_json import from_json

T4 = KNOWN_GPUS["t4-16gb"]
CONTEXT = cuda_context_bytes(T4.compute_capability)

START = f"""
import ctypes, multiprocessing, os, signal, subprocess, sys, time
rt = ctypes.CDLL({LIBRARIES["cudart"]!r})
def take(mib, device=0):
    rt.cudaSetDevice(device)
    if rt.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(mib << 20)):
        raise MemoryError(f"no {{mib}} MiB")
"""


@pytest.fixture
def on_cards(driver, tmp_path, monkeypatch):
    """Return the function that runs a command on two emulated T4, and returns exit code, and record if there is one."""
    described = {"card": "libemulatedcard.so", "load": [LIBRARIES["cudart"]], "values": "none"}
    (driver / "built.json").write_text(json.dumps(described))
    python = EmulatedPython(executable=Path(sys.executable), torch="2.13.0", cuda="13.0", libraries=driver)
    monkeypatch.setattr(job, "emulated_python", lambda *_args, **_options: python)
    monkeypatch.setattr(job, "_GRACE_S", 0.2)
    monkeypatch.setenv("EMULATED_VALUES", "0")
    monkeypatch.chdir(tmp_path)

    def run(program: str, *words: str, keys: tuple[str, ...] = ()) -> tuple[int, JobRecord | None]:
        (tmp_path / "train.py").write_text(START + program)
        code = main(["gpus=2xt4-16gb", f"results_dir={tmp_path}", *keys, *(words or ("train.py",))])
        kept = tmp_path / "jobs" / "train" / "job.json"
        found = from_json(JobRecord, json.loads(kept.read_text())) if kept.exists() else None
        return code, found

    return run


def peaks(record: JobRecord) -> list[tuple[int, ...]]:
    """The peaks of the processes that used a card, without contexts."""
    used = [process.peak_bytes for process in record.memory.processes if any(process.peak_bytes)]
    return sorted(tuple(max(0, size - CONTEXT) // MIB for size in sizes) for sizes in used)


def of(record: JobRecord, words: str) -> JobProcess:
    (found,) = (process for process in record.memory.processes if words in process.command)
    return found


def test_children_of_every_kind_are_part_of_the_run(on_cards, tmp_path, capsys):
    code, record = on_cards(
        """
if __name__ == "__main__":
    if os.fork() == 0:
        take(20); os._exit(0)
    os.wait()
    for mib, method in ((30, "fork"), (40, "spawn"), (50, "forkserver")):
        child = multiprocessing.get_context(method).Process(target=take, args=(mib, 1)); child.start(); child.join()
    again = f"import runpy; runpy.run_path({__file__!r})['take'](60)"
    subprocess.run([sys.executable, "-c", again], check=True)
    subprocess.run(["bash", "-c", 'python -c "$1"', "bash", again.replace("60", "70")], check=True)
    second = {**os.environ, "CUDA_VISIBLE_DEVICES": "1"}
    subprocess.run([sys.executable, "-c", again.replace("60", "80")], check=True, env=second)
    take(10)
""",
    )
    assert (code, record.status, record.message) == (EXIT_OK, "ok", "")
    assert peaks(record) == [(0, 30), (0, 40), (0, 50), (0, 80), (10, 0), (20, 0), (60, 0), (70, 0)]
    assert record.memory.card_peak_bytes == (70 * MIB + CONTEXT, 80 * MIB + CONTEXT)
    printed = capsys.readouterr().out
    assert "Emulated on 2 x Tesla T4: python train.py" in " ".join(printed.split())
    assert "The most on each card at once: card 0: 0.20 GiB, card 1: 0.21 GiB." in printed
    found = sorted(path.name for path in (tmp_path / "jobs" / "train").iterdir())
    assert found == ["figures", "job.json", "report.html", "report.md"]


def test_ranks_of_torchrun_are_processes_with_their_cards(on_cards):
    code, record = on_cards(
        "take(100 * (1 + int(os.environ['RANK'])), int(os.environ['LOCAL_RANK']))\n",
        *["torchrun", "--nproc_per_node=2", "train.py"],
    )
    assert (code, record.message) == (EXIT_OK, "")
    ranks = {(one.rank, one.ranks): one.peak_bytes for one in record.memory.processes if any(one.peak_bytes)}
    assert ranks == {(0, 2): (100 * MIB + CONTEXT, 0), (1, 2): (0, 200 * MIB + CONTEXT)}


FAILS = """
def second():
    take(10); time.sleep(0.1)
    raise ValueError("on purpose")
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=second); child.start(); child.join()
    raise RuntimeError(f"a child ended with {child.exitcode}")
"""


def test_the_first_error_is_named_with_its_last_sentence(on_cards, capsys):
    code, record = on_cards(FAILS)
    child = of(record, "spawn_main")
    assert (code, record.status) == (EXIT_SOME_TRIALS_FAILED, "failed")
    assert record.message == f"process {child.pid} ({short_command(child)}) ended by ValueError: on purpose"
    assert child.peak_bytes == (10 * MIB + CONTEXT, 0)
    assert "ended by ValueError: on purpose" in " ".join(capsys.readouterr().out.split())


def test_an_error_that_its_command_survives_is_named_too(on_cards, capsys):
    code, record = on_cards(FAILS.replace("raise RuntimeError", "str"))
    assert (code, record.message) == (EXIT_OK, "")
    assert "Also, process" in (said := " ".join(capsys.readouterr().out.split()))
    assert "ended by ValueError: on purpose" in said


def test_a_process_that_is_killed_keeps_its_peaks_and_is_named(on_cards):
    code, record = on_cards(
        """
if os.fork() == 0:
    take(900); os.kill(os.getpid(), signal.SIGKILL)
os._exit(os.waitstatus_to_exitcode(os.wait()[1]) + 14)
"""
    )
    assert (code, record.exit_code) == (EXIT_SOME_TRIALS_FAILED, 5)
    (killed,) = (one for one in record.memory.processes if any(one.peak_bytes))
    assert killed.peak_bytes == (900 * MIB + CONTEXT, 0)
    named = f"process {killed.pid} ({short_command(killed)})"
    assert record.message == f"the command ended with exit code 5; without a word ended {named}"


@pytest.mark.parametrize(
    ("keys", "code"), [((), EXIT_OK), (("fail_if=does_not_fit",), EXIT_ANSWER_IS_NO)], ids=["answer", "asked"]
)
def test_a_process_runs_out_of_what_its_neighbour_has_taken(on_cards, keys, code):
    """The second process has less than half of the card, and would fit alone; its error is named as torch names it."""
    ended, record = on_cards(
        """
class OutOfMemoryError(RuntimeError): pass
def neighbour():
    try: take(6000)
    except MemoryError as error: raise OutOfMemoryError("CUDA out of memory") from error
if __name__ == "__main__":
    take(9000)
    child = multiprocessing.get_context("spawn").Process(target=neighbour); child.start(); child.join()
    sys.exit(child.exitcode)
""",
        keys=keys,
    )
    assert (ended, record.status) == (code, "oom")
    child = of(record, "spawn_main")
    assert record.message.endswith("ended by OutOfMemoryError: CUDA out of memory")
    assert (child.refused_bytes, child.refused_card) == (6000 * MIB, 0)


def test_nvidia_smi_shows_the_cards_and_what_is_on_them(on_cards, capfd):
    queries = (
        "-L",
        "--query-gpu=index,name,memory.total --format=csv,noheader,nounits",
        "--query-gpu=compute_cap,x --format=csv",
        "--query-compute-apps=pid,used_memory --format=csv,noheader,nounits",
        "",
    )
    program = "take(100, 1)\nprint(os.getpid(), flush=True)\n"
    program += "".join(f"subprocess.run('nvidia-smi {query}'.split(), check=True)\n" for query in queries)
    code, _ = on_cards(program)
    _, pid, *lines = capfd.readouterr().out.splitlines()
    assert code == EXIT_OK
    assert [line.partition(" (")[0] for line in lines[:2]] == ["GPU 0: Tesla T4", "GPU 1: Tesla T4"]
    assert lines[2:4] == ["0, Tesla T4, 15360", "1, Tesla T4, 15360"]
    assert lines[4:7] == ["compute_cap, x", "7.5, [N/A]", "7.5, [N/A]"]
    assert lines[7] == f"{pid}, {100 + CONTEXT // MIB}"
    assert lines[8].startswith("NVIDIA-SMI (emulated)")


def test_a_process_that_calls_what_has_no_answer_says_so(on_cards):
    code, record = on_cards(f"rt.{NEW}()\n")
    assert (code, record.exit_code) == (EXIT_SOME_TRIALS_FAILED, 2)
    assert f"ended by The emulated driver has no answer for {NEW} of libcudart: this program cannot" in record.message


BUSY = """
import socket
with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0)); taken.listen()
    port = taken.getsockname()[1]
    sys.exit(subprocess.run(f"torchrun --nproc_per_node=1 --master_port={port} other.py".split()).returncode)
"""


def test_a_busy_port_is_one_sentence(on_cards):
    code, record = on_cards(BUSY)
    assert code == EXIT_SOME_TRIALS_FAILED
    assert "ended by DistNetworkError: The server socket has failed to listen" in record.message


BUSY_SERVER = """
SERVER = '''
import socket, sys
try: socket.create_server(("127.0.0.1", {port}))
except OSError: {ends}
'''
TRAINER = '''
import runpy; runpy.run_path({file!r}, run_name="trainer")["take"](10)
raise {error}
'''
if __name__ == "__main__":
    import socket
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = SERVER.format(port=taken.getsockname()[1], ends=ENDS)
        subprocess.run([sys.executable, "-c", "import no_such_package"])
        subprocess.run([sys.executable, "-c", server])
        trainer = TRAINER.format(file=__file__, error=ERROR)
        sys.exit(subprocess.run([sys.executable, "-c", trainer]).returncode)
"""


@pytest.mark.parametrize("ends", ["raise", "sys.exit(1)"], ids=["raises", "exits"])
@pytest.mark.parametrize("error", ["ConnectionError('no server')", "RuntimeError('later')", "os.kill(os.getpid(), 9)"])
def test_a_server_whose_port_is_busy_is_the_cause(on_cards, ends, error):
    """Not what its trainer says later, nor a process that looked for a package before."""
    program = BUSY_SERVER.replace("ENDS", repr(ends)).replace("ERROR", repr(error))
    code, record = on_cards(
        program.replace("raise {error}", "import os; {error}" if "kill" in error else "raise {error}")
    )
    server = of(record, "create_server")
    assert (code, record.status) == (EXIT_SOME_TRIALS_FAILED, "failed")
    assert record.message.startswith(f"process {server.pid} ")
    assert "is in use by process" in record.message


def test_words_of_an_exit_are_the_last_sentence(on_cards):
    _, record = on_cards("if __name__ == '__main__': sys.exit('no model here')\n")
    assert record.message.endswith("ended by SystemExit: no model here")
    _, record = on_cards("if __name__ == '__main__': sys.exit(4)\n")
    assert record.message == "the command ended with exit code 4"


INTERRUPTED = """
import sys
from pathlib import Path
from profiler.emulation.launch import EmulatedPython
from profiler.run import job, main
libraries, results = map(Path, sys.argv[1:])
python = EmulatedPython(executable=Path(sys.executable), torch="2.13.0", cuda="13.0", libraries=libraries)
job.emulated_python, job._GRACE_S = lambda *_, **__: python, 0.2
sys.exit(main.main(["gpus=1xt4-16gb", f"results_dir={results}", "train.py"]))
"""


def test_ctrl_c_is_one_sentence_and_leaves_nothing(on_cards, driver, tmp_path):
    (tmp_path / "train.py").write_text(
        START + "if os.fork() == 0: os.setsid()\ntake(10)\nopen(str(os.getpid()), 'w'); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", INTERRUPTED, str(driver), str(tmp_path / "results")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        while len(pids := [path.name for path in tmp_path.iterdir() if path.name.isdigit()]) < 2:
            time.sleep(0.01)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=60)
    assert program.returncode == EXIT_SIGNAL_BASE + signal.SIGINT
    assert said.splitlines()[-1] == "Interrupted."
    assert not any(Path("/proc", pid).exists() for pid in pids)
    assert not (tmp_path / "results" / "jobs" / "train").exists()


KILLED = """
from multiprocessing import resource_tracker, shared_memory
class Id(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 128)]
nccl = ctypes.CDLL("libnccl.so.2"); nccl.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int)
name, id = f"psm_killed_{os.stat(os.curdir).st_ino}_{os.getpid()}", Id(); nccl.ncclGetUniqueId(ctypes.byref(id))
made = shared_memory.SharedMemory(name=name, create=True, size=100)
resource_tracker.unregister(made._name, "shared_memory")
rank = 0 if os.fork() else 1
if rank: os.setsid(); signal.signal(signal.SIGINT, signal.SIG_IGN)
take(10, rank); group, place = ctypes.c_void_p(), ctypes.c_void_p()
rt.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(8))
nccl.ncclCommInitRank(ctypes.byref(group), 2, id, rank)
while True:
    nccl.ncclAllReduce(place, place, ctypes.c_size_t(1), 4, 0, group, None); rt.cudaDeviceSynchronize()
    time.sleep(0.01)  # a kill between two exchanges or in one, without two ranks that take all cores until then
"""


WRITTEN = {"job.json", "report.html", "report.md", "course.png", "course.svg"}
"""What a command leaves that came to its end."""


def what_is_left(results: Path, temporary: Path) -> list[str]:
    """Processes that were started for these folders, shared memory, and files that are neither records nor reports."""
    found = [
        str(path)
        for path in (*Path("/dev/shm").glob(f"psm_killed_{results.parent.stat().st_ino}_*"), *temporary.iterdir())
    ]
    # Unlike rglob, it goes on where a folder is removed meanwhile.
    found += [str(Path(top, name)) for top, _, names in os.walk(results) for name in names if name not in WRITTEN]
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            if str(results).encode() in words:
                found.append(f"process {process.name}")
    return found


@pytest.mark.parametrize("victim", ["program", "keeper"])
def test_runs_that_are_killed_leave_records_only(on_cards, driver, tmp_path, victim):
    """Five of each: two ranks that exchange values, with shared memory, and one in a session of its own."""
    (tmp_path / "train.py").write_text(START + KILLED)
    random, results = Random(victim), tmp_path / "results"
    command = [sys.executable, "-c", INTERRUPTED, str(driver), str(results)]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()
    for number in range(5):
        signals = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        ) as program:
            children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
            while victim == "keeper" and not children.read_text():
                time.sleep(0.01)  # on a slow machine the program takes seconds to start it
            time.sleep(random.uniform(0.2, 2.5))
            one = int(children.read_text().split()[0]) if victim == "keeper" else program.pid
            os.kill(one, signal.SIGKILL if victim == "keeper" else signals[number % 3])
            program.wait(60)
        ends_s = time.monotonic() + 60
        while (left := what_is_left(results, tmp_path / "temporary")) and time.monotonic() < ends_s:
            time.sleep(0.05)
        assert left == []


def test_what_is_left_goes_also_if_the_keeper_is_killed(tmp_path, monkeypatch):
    """Ctrl-C, and a keeper that takes too long to end the job."""
    (memory := tmp_path / "memory").mkdir()
    monkeypatch.setattr(job, "_SHARED_MEMORY", memory)
    made, pids = memory / "psm_left", []

    def interrupted(reader, keeper, until_s):
        while not made.exists() or not made.read_text():
            time.sleep(0.01)
        pids.append(int(made.read_text()))
        raise KeyboardInterrupt

    def killed(keeper):
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)

    monkeypatch.setattr(job, "_hear", interrupted)
    monkeypatch.setattr(job, "_stop", killed)
    program = f"import os, time; open({str(made)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        job.run_to_the_end([sys.executable, "-c", program], dict(os.environ), timeout_s=60)
    assert not made.exists()
    assert not Path("/proc", str(pids[0])).exists()


def test_a_socket_of_odd_bytes_hinders_no_removal(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_SHARED_MEMORY", tmp_path)
    before = job.Files.now()
    (tmp_path / "psm_left").write_bytes(b"1")
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(b"\0/\xff\xfe" + str(os.getpid()).encode())
        assert str(tmp_path / "psm_left") in before.removed_since()
    assert not (tmp_path / "psm_left").exists()


def test_a_cluster_of_ray_that_an_address_names_is_refused(on_cards, monkeypatch, capsys):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert on_cards("") == (EXIT_USAGE, None)
    said = capsys.readouterr().err
    assert said.startswith("RAY_ADDRESS=10.0.0.1:6379: names a Ray cluster that is running already")
    assert "Unset RAY_ADDRESS" in said


def test_a_cluster_of_ray_that_runs_is_seen(tmp_path):
    assert process_of_another_cluster("/job", tmp_path) is None
    for number, (program, variables) in enumerate(
        [("/usr/bin/python", ""), ("/ray/gcs_server", "EMULATED_PROCESSES=/job"), ("/ray/gcs_server", "A=1")], start=1
    ):
        (process := tmp_path / str(number)).mkdir()
        (process / "cmdline").write_text(f"{program}\0--port=1\0")
        (process / "environ").write_text(f"A=0\0{variables}\0")
    assert process_of_another_cluster("/job", tmp_path) == 3
    services = SimpleNamespace(get_ray_address_from_environment=lambda *_: "found")
    refuse_other_clusters("/job")(services)
    assert services.get_ray_address_from_environment(None, None) == "found"


def test_wrong_input_starts_nothing(on_cards, capsys):
    code, record = on_cards("", "no-such-program", "train.py")
    assert (code, record) == (EXIT_USAGE, None)
    assert "cannot be started (No such file or directory)" in capsys.readouterr().err
