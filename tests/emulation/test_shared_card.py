"""Several processes on one emulated card: its memory, what they open of each other, and what is kept of each."""

import os
import struct
import subprocess
import sys

import pytest
from emulation.building import run_on_card

from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import MIB, Phase
from profiler.domain.runs.other_runs import JobMemory
from profiler.emulation.card import _course, job_of, remove_ended, roles_of

T4 = KNOWN_GPUS["t4-16gb"]
CONTEXT = cuda_context_bytes(T4.compute_capability)

TWO = """
import os, signal
free, total = c_size_t(), c_size_t()
class Handle(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 64)]
rt.cudaIpcOpenMemHandle.argtypes = (ctypes.POINTER(c_void_p), Handle, c_uint)
cu.cuIpcOpenMemHandle_v2.argtypes = (ctypes.POINTER(c_void_p), Handle, c_uint)
def used():
    rt.cudaMemGetInfo(byref(free), byref(total)); return total.value - free.value
def take(size):
    p = c_void_p(); return rt.cudaMalloc(byref(p), c_size_t(size)), p
(to_first, from_second), (to_second, from_first) = os.pipe()[::-1], os.pipe()[::-1]
def tell(pipe, words=b"."): os.write(pipe, words)
def hear(pipe): return os.read(pipe, 4096)
second = os.fork()
"""
"""Two processes, of which the second is a child that was forked before either used a card."""


def run_two(driver, folder, first: str, second: str, **variables: str):
    """Run both programs at once; the first one prints the answer."""
    body = "".join(f"    {line}\n" for line in second.strip().splitlines())
    program = f"{TWO}if second == 0:\n{body}    os._exit(0)\n{first}"
    variables = {"EMULATED_PROCESSES": str(folder / "job"), "EMULATED_SHARED": "1", **variables}
    return run_on_card(driver, program, **variables)


def test_a_card_is_one_state_for_its_processes(driver, tmp_path):
    """A process that is killed gives its memory back, also while nobody has waited for it."""
    found = run_two(
        driver,
        tmp_path,
        """
before = used(); tell(to_second); hear(from_second); during = used()
refused = take(8 * 2**30)[0]; fits = take(4 * 2**30)[0]
os.kill(second, signal.SIGKILL); os.waitid(os.P_PID, second, os.WEXITED | os.WNOWAIT)
print(json.dumps([before, during, refused, fits, used(), take(8 * 2**30)[0]]))
""",
        "hear(from_first); take(8 * 2**30); tell(to_first); signal.pause()",
    )
    own = 4 * 2**30 + CONTEXT
    assert found == [CONTEXT, 8 * 2**30 + 2 * CONTEXT, 2, 0, own, 0]


def test_a_process_that_does_not_share_has_the_card_for_itself(driver, tmp_path):
    first = "tell(to_second); hear(from_second); print(json.dumps([used(), take(12 * 2**30)[0]]))"
    second = "hear(from_first); take(12 * 2**30); tell(to_first); signal.pause()"
    first += "; os.kill(second, signal.SIGKILL)"
    assert run_two(driver, tmp_path, first, second, EMULATED_SHARED="") == [CONTEXT, 0]


def test_processes_together_never_pass_the_end_of_the_card(driver, tmp_path):
    program = """
import os, signal
(ready, says_ready), (go, says_go), (counts, says_count) = os.pipe(), os.pipe(), os.pipe()
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        rt.cudaFree(None); os.write(says_ready, b"."); os.read(go, 1); count = 0
        while rt.cudaMalloc(byref(c_void_p()), c_size_t(16 * 2**20)) == 0: count += 1
        os.write(says_count, b"%4d" % count); signal.pause()
    children.append(child)
for _ in children: os.read(ready, 1)
os.write(says_go, b"....")
print(json.dumps(sum(int(os.read(counts, 4)) for _ in children)))
for child in children: os.kill(child, signal.SIGKILL)
"""
    found = run_on_card(driver, program, EMULATED_PROCESSES=str(tmp_path / "job"), EMULATED_SHARED="1")
    assert found == (T4.memory_bytes - 4 * CONTEXT) // (16 * MIB)


SHARES = """
attributes = (c_int * 6)()
hear(from_second); _, p = take(64 * 2**20); handle = Handle()
error = rt.cudaIpcGetMemHandle(byref(handle), p); tell(to_second, bytes(handle)); found = json.loads(hear(from_second))
print(json.dumps([error, used(), *found])); tell(to_second)
"""
OPENS = """
mine = used(); tell(to_first); handle, p, again = Handle.from_buffer_copy(hear(from_first)), c_void_p(), c_void_p()
opened = OPEN(byref(p), handle, 1); kind = (c_int * 6)(); rt.cudaPointerGetAttributes(kind, p)
both = used() - mine; host = (ctypes.c_char * 4)(); rt.cudaMemcpy(host, p, c_size_t(4), 2)
text = ctypes.create_string_buffer(4096); card.em_marks(text, 4096)
freed, closed, twice = rt.cudaFree(p), CLOSE(p), CLOSE(p)
handle.bytes = b"nobody"; broken = OPEN(byref(again), handle, 1)
tell(to_first, json.dumps([opened, kind[0], both, text.value.decode(), freed, closed, twice, broken]).encode())
hear(from_first)
"""


@pytest.mark.parametrize(
    ("opened_by", "closed_by"),
    [("rt.cudaIpcOpenMemHandle", "rt.cudaIpcCloseMemHandle"), ("cu.cuIpcOpenMemHandle_v2", "cu.cuIpcCloseMemHandle")],
)
def test_an_allocation_that_another_process_opens_counts_once(driver, tmp_path, opened_by, closed_by):
    opens = OPENS.replace("OPEN", opened_by).replace("CLOSE", closed_by)
    error, used, opened, kind, both, marks, freed, closed, twice, broken = run_two(driver, tmp_path, SHARES, opens)
    # Kind 2: memory of a card. Only the first process's context and its 64 MiB were added.
    assert (error, opened, kind, both) == (0, 0, 2, CONTEXT + 64 * MIB)
    assert used == 2 * CONTEXT + 64 * MIB
    # It is closed and not freed, once; a handle that no process made is an invalid one.
    assert (freed, closed, twice, broken) == (1, 0, 1, 400)
    assert marks == "value\tbytes of memory of another process\t1\n"


def test_a_piece_that_another_process_maps_counts_once(driver, tmp_path):
    """As torch shares expandable segments: by the descriptor of a file."""
    found = run_two(
        driver,
        tmp_path,
        """
properties, piece, descriptor = (c_int * 8)(1, 1, 1, 0), c_size_t(), c_int()
hear(from_second); cu.cuMemCreate(byref(piece), c_size_t(32 * 2**20), properties, c_size_t(0))
fabric = cu.cuMemExportToShareableHandle(byref(descriptor), piece, 8, c_size_t(0))
exported = cu.cuMemExportToShareableHandle(byref(descriptor), piece, 1, c_size_t(0))
tell(to_second, json.dumps([os.getpid(), descriptor.value]).encode())
print(json.dumps([fabric, exported, *json.loads(hear(from_second))]))
""",
        """
mine = used(); tell(to_first); at, piece = c_size_t(), c_size_t(); pid, descriptor = json.loads(hear(from_first))
file = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR); size, none = c_size_t(32 * 2**20), c_size_t(0)
imported = cu.cuMemImportFromShareableHandle(byref(piece), c_void_p(file), 1)
cu.cuMemAddressReserve(byref(at), size, none, none, none); cu.cuMemMap(at, size, none, piece, none)
both = used() - mine
cu.cuMemRelease(piece); cu.cuMemUnmap(at, size); released = used() - mine
broken = cu.cuMemImportFromShareableHandle(byref(piece), c_void_p(os.open(os.devnull, os.O_RDWR)), 1)
tell(to_first, json.dumps([imported, both, released, broken]).encode())
""",
    )
    counted = CONTEXT + 32 * MIB
    assert found == [801, 0, 0, counted, counted, 1]


def test_an_event_of_another_process_has_been_reached(driver):
    found = run_on_card(
        driver,
        """
class Handle(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 64)]
rt.cudaIpcOpenEventHandle.argtypes = (ctypes.POINTER(c_void_p), Handle)
event, opened, handle = c_void_p(), c_void_p(), Handle()
rt.cudaEventCreate(byref(event)); rt.cudaIpcGetEventHandle(byref(handle), event)
print(json.dumps([rt.cudaIpcOpenEventHandle(byref(opened), handle), rt.cudaEventQuery(opened), bool(opened.value)]))
""",
    )
    assert found == [0, 0, True]


KEPT = """
import os
if os.fork() == 0:
    p = c_void_p(); rt.cudaMalloc(byref(p), c_size_t(6 * 2**30)); rt.cudaFree(p)
    rt.cudaMalloc(byref(p), c_size_t(2 * 2**20)); rt.cudaMalloc(byref(p), c_size_t(20 * 2**30))
    class Id(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 128)]
    for ranks, rank in ((2, 1), (8, 5), (1, 0)): card.em_rank(rank, ranks)
    nccl.ncclCommInitRank(byref(c_void_p()), 9, Id(), 0)  # such as an engine's with its trainer
    card.em_did(1); card.em_did(4); card.em_said(b"ValueError: on purpose"); os.kill(os.getpid(), 9)
os.wait(); rt.cudaMalloc(byref(c_void_p()), c_size_t(2**30))
print(json.dumps(os.getpid()))
"""


def test_what_a_process_held_and_did_is_kept_after_it_was_killed(driver, tmp_path):
    folder = tmp_path / "job"
    pid = run_on_card(
        driver, KEPT, EMULATED_PROCESSES=str(folder), EMULATED_KEPT="1", EMULATED_CARDS="2", CUDA_VISIBLE_DEVICES="1"
    )
    job = job_of(folder)
    killed, ended = job.processes
    assert (killed.parent, ended.pid) == (pid, pid)
    assert killed.peak_bytes == (0, 6 * 2**30 + CONTEXT)
    assert ended.peak_bytes == (0, 2**30 + CONTEXT)
    assert (killed.rank, killed.ranks, killed.roles) == (5, 8, ("trains",))
    assert (ended.rank, ended.ranks, ended.roles) == (None, None, ())
    assert (killed.last_sentence, killed.has_ended_itself) == ("ValueError: on purpose", False)
    assert (ended.last_sentence, ended.has_ended_itself) == ("", True)
    assert killed.last_sentence_s > ended.last_sentence_s == 0
    assert (killed.refused_bytes, killed.refused_card) == (20 * 2**30, 1)
    assert killed.command.startswith(f"{sys.executable} -c import ctypes")
    assert job.card_peak_bytes == (0, 6 * 2**30 + CONTEXT)


def test_a_job_leaves_no_folder_unless_somebody_reads_it(driver, tmp_path):
    folder = tmp_path / "job"
    run_on_card(driver, "rt.cudaFree(None); print(1)", EMULATED_PROCESSES=str(folder))
    assert not folder.exists()
    run_on_card(driver, "rt.cudaFree(None); print(1)", EMULATED_PROCESSES=str(folder), EMULATED_KEPT="1")
    assert len(job_of(folder).processes) == 1


def test_a_folder_that_a_killed_job_left_is_removed_later(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    kept = [tmp_path / f"grpo-vram-emulated-{os.getuid()}-{pid}" for pid in (os.getpid(), "x")]
    folders = [*kept, tmp_path / f"grpo-vram-emulated-{os.getuid()}-{ended.pid}"]
    for folder in folders:
        folder.mkdir()
        (folder / "cards").touch()
    remove_ended(tmp_path, f"grpo-vram-emulated-{os.getuid()}-")
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_roles_are_what_a_process_did():
    found = [roles_of(did) for did in (0, 1 | 4, 2 | 4, 1 | 2 | 4, 4)]
    assert found == [(), ("trains",), ("generates",), ("trains", "generates"), ("scores",)]


def test_phases_say_what_the_work_of_a_process_is_for():
    """Such as multiplications within a function of torch's own, and a share of right tokens among the metrics."""
    trained = {Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert roles_of(4, trained) == ("trains",)
    assert roles_of(1 | 2 | 4, trained | {Phase.EVALUATION}) == ("trains",)
    assert roles_of(1 | 2 | 4, trained | {Phase.ROLLOUT}) == ("trains", "generates")
    assert roles_of(1 | 2 | 4, trained | {Phase.SCORE}) == ("trains", "generates")
    assert roles_of(2 | 4, {Phase.LOAD, Phase.ROLLOUT}) == ("generates",)
    assert roles_of(2 | 4, {Phase.LOAD, Phase.FORWARD}) == ("generates",)


def test_a_folder_without_a_job_has_no_processes(tmp_path):
    assert job_of(tmp_path) == JobMemory()
    (tmp_path / "cards").write_bytes(b"cards=2" + 600 * b"\0")
    assert job_of(tmp_path) == JobMemory()


PHASES = """
import os
report = getattr(card, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")
def counts(allocated, reserved, device=1, number=0):
    report(None, c_size_t(0), c_size_t(allocated << 20), c_size_t(reserved << 20), c_uint(device | number << 8))
first = c_void_p(); rt.cudaMalloc(byref(first), c_size_t(40 << 20)); second = c_void_p()
counts(10, 40); counts(30, 40); counts(20, 40); counts(500, 500, device=0)
card.em_phase(5); rt.cudaMalloc(byref(second), c_size_t(20 << 20)); counts(50, 60); counts(5, 60)
rt.cudaFree(second); card.em_phase(1); card.em_phase(6)
rt.cudaSetDevice(1); rt.cudaMalloc(byref(second), c_size_t(90 << 20)); counts(7, 90, number=1)
card.em_phase(99); counts(8, 60)
os.kill(os.getpid(), 9) if os.fork() == 0 else os.wait()
if os.fork() == 0:
    rt.cudaSetDevice(0); rt.cudaMalloc(byref(first), c_size_t(2 << 20)); counts(1, 2); os.kill(os.getpid(), 9)
os.wait(); print(1)
"""


CONTENTS = """
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.readings import CategoryShare
from profiler.emulation.card import note_content
report = getattr(card, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")
def note(phase, **sizes):
    note_content(Phase(phase), [CategoryShare(category=Category(each), size_bytes=sizes[each]) for each in sizes])
first = c_void_p(); rt.cudaMalloc(byref(first), c_size_t(4096))
for place, phase in enumerate(Phase):
    if phase in ("load", "forward", "backward"):
        card.em_phase(place); report(None, c_size_t(0), c_size_t(3072), c_size_t(4096), c_uint(1))
note("load", other=3060); note("load", weights=2048, other=1012); note("load", weights=1024)
note("forward", weights=3073); note("backward", weights=3000); print(1)
"""


def test_a_peak_has_the_content_that_adds_up_to_it(driver, tmp_path):
    """With rests of blocks; the last of equal ones, when the process knew most; none of another instant."""
    folder = tmp_path / "job"
    variables = {"EMULATED_PROCESSES": str(folder), "EMULATED_KEPT": "1"}
    run_on_card(driver, CONTENTS, **variables)
    (process,) = job_of(folder).processes
    assert {
        each.phase.value: [(share.category.value, share.size_bytes) for share in each.shares] for each in process.phases
    } == {
        "load": [("weights", 2048), ("other", 1024)],
        "forward": [],
        "backward": [],
    }


SLEEPS = """
report = getattr(card, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")
weights, cache = c_void_p(), c_void_p()
rt.cudaMalloc(byref(weights), c_size_t(10 << 20)); rt.cudaMalloc(byref(cache), c_size_t(30 << 20))
report(None, c_size_t(0), c_size_t(38 << 20), c_size_t(40 << 20), c_uint(1))
rt.cudaFree(weights); rt.cudaFree(cache)
card.em_phase(1); rt.cudaMalloc(byref(weights), c_size_t(10 << 20)); card.em_phase(5)
rt.cudaMalloc(byref(cache), c_size_t(30 << 20)); print(1)
"""


def test_an_engine_that_sleeps_holds_no_tensors(driver, tmp_path):
    """Its memory returns to the card, and comes back, without a word to torch's counters: weights, then the cache."""
    folder = tmp_path / "job"
    run_on_card(driver, SLEEPS, EMULATED_PROCESSES=str(folder), EMULATED_KEPT="1")
    (process,) = (process for process in job_of(folder).processes if process.phases)
    found = [(each.phase.value, each.allocated_bytes // MIB, each.reserved_bytes // MIB) for each in process.phases]
    assert found == [("load", 38, 40), ("rollout", 10, 10), ("forward", 38, 40)]


def test_peaks_of_torchs_counters_are_kept_by_phase(driver, tmp_path):
    """A phase begins with what the last one holds, without a cache that was emptied. A forked process begins anew."""
    folder = tmp_path / "job"
    run_on_card(driver, PHASES, EMULATED_PROCESSES=str(folder), EMULATED_KEPT="1", EMULATED_CARDS="2")
    parent, child = (process for process in job_of(folder).processes if process.phases)
    found = [(each.phase.value, each.allocated_bytes // MIB, each.reserved_bytes // MIB) for each in parent.phases]
    assert found == [("load", 30, 40), ("rollout", 5, 40), ("forward", 50, 60), ("backward", 8, 90)]
    assert [(each.phase.value, each.allocated_bytes, each.reserved_bytes) for each in child.phases] == [
        ("load", MIB, 2 * MIB)
    ]


COURSE = """
def take(mib): p = c_void_p(); rt.cudaMalloc(byref(p), c_size_t(mib << 20)); return p
child = os.fork()
if child == 0:
    weights = take(2048); card.em_phase(1); take(2); cache = take(4096); rt.cudaFree(cache)
    card.em_phase(10); take(512); os.kill(os.getpid(), 9)
os.waitpid(child, 0); take(1024); card.em_phase(5); card.em_phase(5); take(10240); print(1)
"""


def test_the_course_has_who_holds_what_in_which_phase(driver, tmp_path):
    """Also the memory that a killed process returns, seen by the next one; 2 MiB alone are less than 1/256 of a T4."""
    folder = tmp_path / "job"
    run_on_card(driver, f"import os\n{COURSE}", EMULATED_PROCESSES=str(folder), EMULATED_KEPT="1")
    job = job_of(folder)
    engine, trainer = (place for place, process in enumerate(job.processes) if any(process.peak_bytes))
    found = [(each.process, each.phase.value, (each.held_bytes - CONTEXT) // MIB) for each in job.course]
    assert [(phase, mib) for process, phase, mib in found if process == engine] == [
        ("load", 0), ("load", 2048), ("rollout", 2048), ("rollout", 6146), ("rollout", 2050), ("sync", 2050),
        ("sync", 2562), ("sync", -CONTEXT // MIB),
    ]  # fmt: skip
    assert [(phase, mib) for process, phase, mib in found if process == trainer] == [
        ("load", 0), ("load", 1024), ("forward", 1024), ("forward", 11264), ("forward", -CONTEXT // MIB)
    ]  # fmt: skip
    assert found.index((engine, "sync", -CONTEXT // MIB)) < found.index((trainer, "load", 1024))
    assert {each.card for each in job.course} == {0}
    worst = [job.processes[place] for place in (engine, trainer)]
    assert [process.at_worst_bytes[0] for process in worst] == [0, 11264 * MIB + CONTEXT]
    assert worst[1].at_worst_phases[0].value == "forward"
    assert job.card_peak_bytes[0] == sum(process.at_worst_bytes[0] for process in job.processes)


def test_of_a_long_course_the_smallest_changes_are_left_out(tmp_path):
    """And a change of which the last bytes are missing, and those of a process without an entry."""
    written = [(0, 0, place % 2, 100 + place % 2) for place in range(30_000)]
    written += [(0, 0, 5, 1 << 30), (0, 0, 5, 0), (3, 0, 5, 1)]
    (tmp_path / "course").write_bytes(b"".join(struct.pack("<qqqQ", *change) for change in written) + b"12345")
    kept = _course(tmp_path / "course", 1)
    assert [(change.phase.value, change.held_bytes) for change in kept] == [
        ("load", 100), ("forward", 1 << 30), ("forward", 0)
    ]  # fmt: skip
    assert len(_course(tmp_path / "course", 1)) <= 20_000
