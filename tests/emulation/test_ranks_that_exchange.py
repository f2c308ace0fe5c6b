"""Ranks that are processes exchange values by NCCL's calls, on the small driver; the processes call it by ctypes."""

import ctypes
import time

import numpy as np
import pytest
from emulation.building import LIBRARIES, run_on_card
from hypothesis import given, settings
from hypothesis import strategies as st

RANKS = """
import os, signal, sys, time
class Id(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 128)]
C = {4: ctypes.c_int64, 7: ctypes.c_float, 1: ctypes.c_uint8}
SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE, INT64, FLOAT, BYTE = 0, 1, 2, 3, 4, 4, 7, 1
def on_card(values, kind=INT64):
    host, place = (C[kind] * len(values))(*values), c_void_p(); size = c_size_t(ctypes.sizeof(host))
    rt.cudaMalloc(byref(place), size); rt.cudaMemcpy(place, host, size, 1); return place
def read(place, count, kind=INT64):
    host = (C[kind] * count)(); rt.cudaMemcpy(host, place, c_size_t(ctypes.sizeof(host)), 2); return list(host)
def marks():
    text = ctypes.create_string_buffer(4096); card.em_marks(text, 4096); return text.value.decode()
def call(name, *words): getattr(nccl, "nccl" + name)(*(c_size_t(w) if i == 2 else w for i, w in enumerate(words)), None)
def reduced(values, operation, group, kind=INT64):
    place = on_card(values, kind); call("AllReduce", place, place, len(values), kind, operation, group)
    return read(place, len(values), kind)
def gathered(values, group, ranks):
    to = on_card([0] * len(values) * ranks); call("AllGather", on_card(values), to, len(values), INT64, group)
    return read(to, len(values) * ranks)
id = Id(); nccl.ncclGetUniqueId(byref(id))
pipes = [os.pipe() for _ in range(ranks)]
for rank in range(ranks):
    if os.fork() == 0:
        group = c_void_p(); rt.cudaSetDevice(rank)
        nccl.ncclCommInitRank.argtypes = (c_void_p, c_int, Id, c_int)
        nccl.ncclCommInitRank(byref(group), ranks, id, rank)
        os.write(pipes[rank][1], json.dumps(body(rank, group)).encode()); os._exit(0)
ends = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(ranks)]
for _, writer in pipes: os.close(writer)
print(json.dumps([json.loads(os.read(reader, 1 << 16) or "null") for reader, _ in pipes] + [sorted(ends)]))
"""
"""Run `body(rank, group)` as each of `ranks` processes, and print what all of them return and their exit codes."""


def run_ranks(driver, folder, ranks: int, body: str, **variables: str):
    """Return what the body returns for each rank, the sorted exit codes, and what was written to standard error."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    program = f"ranks = {ranks}\ndef body(rank, group):\n{lines}{RANKS}import sys; sys.stdout.flush()"
    variables = {"EMULATED_ALL_RANKS": "1", "EMULATED_CARDS": "3", "EMULATED_WAIT_S": "60", **variables}
    *found, ends = run_on_card(driver, program, EMULATED_PROCESSES=str(folder / "job"), **variables)
    return found, ends


@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_of_the_group_exchange_what_each_has(driver, tmp_path, ranks):
    body = """
sums = [reduced([rank + 1, 5], operation, group) for operation in (SUM, PRODUCT, MAXIMUM, MINIMUM)]
mean = reduced([rank + 0.5, 4.0], AVERAGE, group, FLOAT)
sent = on_card([10 * rank + 7, 3])
call("Broadcast", sent, sent, 2, INT64, ranks - 1, group)
parts, own = on_card(range(100 * rank, 100 * rank + ranks)), on_card([0])
call("ReduceScatter", parts, own, 1, INT64, SUM, group)
swapped = on_card([0] * ranks); call("AlltoAll", parts, swapped, 1, INT64, group)
one = on_card([rank + 1]); call("Reduce", one, one, 1, INT64, SUM, 1, group)
pairs = gathered([rank, 2 * rank], group, ranks)
return [sums, mean, pairs, read(sent, 2), read(own, 1), read(swapped, ranks), read(one, 1), marks()]
"""
    found, ends = run_ranks(driver, tmp_path, ranks, body)
    each = range(ranks)
    total = sum(range(1, ranks + 1))
    sums = [[total, 5 * ranks], [2 if ranks == 2 else 6, 5**ranks], [ranks, 5], [1, 5]]
    mean = [sum(rank + 0.5 for rank in each) / ranks, 4.0]
    pairs = [value for rank in each for value in (rank, 2 * rank)]
    for rank in each:
        scattered = [sum(100 * other + rank for other in each)]
        swapped = [100 * other + rank for other in each]
        at_root = [total if rank == 1 else rank + 1]
        sent = [10 * (ranks - 1) + 7, 3]
        assert found[rank] == [sums, mean, pairs, sent, scattered, swapped, at_root, ""]
    assert ends == [0] * ranks


def test_a_rank_receives_in_the_order_of_sends(driver, tmp_path):
    """All receive first, which only works if a call returns before its message is there."""
    body = """
before, after = (rank - 1) % ranks, (rank + 1) % ranks
first, second = on_card([0]), on_card([0])
for place in (first, second): nccl.ncclRecv(place, c_size_t(1), INT64, before, group, None)
for value in (rank, rank + 50): nccl.ncclSend(on_card([value]), c_size_t(1), INT64, after, group, None)
return [read(second, 1), read(first, 1)]
"""
    found, _ = run_ranks(driver, tmp_path, 3, body)
    assert found == [[[(rank - 1) % 3 + 50], [(rank - 1) % 3]] for rank in range(3)]


def test_ranks_of_one_colour_become_a_group_by_their_keys(driver, tmp_path):
    body = """
made, count, own = c_void_p(), c_int(), c_int()
nccl.ncclCommSplit(group, 7 if rank != 1 else -1, -rank, byref(made), None)
if rank == 1: return made.value
nccl.ncclCommCount(made, byref(count)); nccl.ncclCommUserRank(made, byref(own))
return [count.value, own.value, gathered([rank], made, 2)]
"""
    found, _ = run_ranks(driver, tmp_path, 3, body)
    assert found == [[2, 1, [2, 0]], None, [2, 0, [2, 0]]]


def test_a_call_returns_at_once_and_a_meeting_waits(driver, tmp_path):
    """Rank 1 calls when rank 0 has returned; rank 0 then waits at the meeting, also where it never reads the result."""
    note = str(tmp_path / "rank 1 calls")
    body = f"""
place, go = on_card([rank]), {note!r}
if rank == 0:
    call("AllReduce", place, place, 1, INT64, SUM, group); open(go + " now", "w").close()
    rt.cudaStreamSynchronize(None); return os.path.exists(go)
while not os.path.exists(go + " now"): time.sleep(0.01)
time.sleep(0.2); open(go, "w").close()
call("AllReduce", place, place, 1, INT64, SUM, group)
"""
    found, ends = run_ranks(driver, tmp_path, 2, body)
    assert (found, ends) == ([True, None], [0, 0])


def test_what_is_written_over_a_place_that_waits_stays(driver, tmp_path):
    body = """
place = on_card([rank + 1] * 4); call("AllReduce", place, place, 4, INT64, SUM, group)
rt.cudaMemset(place, 0, c_size_t(8)); rt.cudaMemset(c_void_p(place.value + 16), 0, c_size_t(8))
return read(place, 4)
"""
    assert run_ranks(driver, tmp_path, 2, body)[0] == [[0, 3, 0, 3]] * 2


def test_large_messages_have_no_content_and_reads_are_marked(driver, tmp_path):
    """65,536 bytes of floats are sent, and one float more is not; integers are sent if they are known."""
    body = """
found = []
for count, kind in ((16384, FLOAT), (16385, FLOAT), (40000, INT64)):
    place = on_card([1] * count, kind); call("AllReduce", place, place, count, kind, SUM, group)
    found += [read(place, count, kind)[-1], marks()]
return found
"""
    found, _ = run_ranks(driver, tmp_path, 2, body)
    mark = "value\tbytes of ncclAllReduce\t1\n"
    assert [[each[0], each[1], *each[3:]] for each in found] == [[2, "", mark, 2, mark]] * 2


def test_what_a_rank_does_not_know_no_other_knows(driver, tmp_path):
    body = """
place = on_card([3])
if rank == 1: card.em_values_unknown(place, c_size_t(8), b"a kernel")
call("AllReduce", place, place, 1, INT64, SUM, group)
return [read(place, 1), marks()]
"""
    assert run_ranks(driver, tmp_path, 2, body)[0] == [[[6], "value\tbytes of a kernel\t1\n"]] * 2


def test_many_calls_that_nobody_reads_need_no_more_place(driver, tmp_path):
    body = """
kept, place = on_card([rank + 1]), on_card([rank])
call("AllReduce", kept, kept, 1, INT64, SUM, group)
for _ in range(2000): call("Broadcast", place, place, 1, INT64, 0, group)
first = [read(kept, 1), read(place, 1)]
for _ in range(2000): call("AllReduce", place, place, 1, INT64, MAXIMUM, group)
return [*first, read(place, 1)]
"""
    assert run_ranks(driver, tmp_path, 2, body)[0] == [[[3], [0], [0]]] * 2


ENDS = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "has ended", -9),
    "leaves": ("nccl.ncclCommDestroy(group); time.sleep(1); os._exit(0)", "has left the group", 0),
    "slow": ("time.sleep(3); os._exit(0)", "has not called ncclAllGather within 0.5 s, for", 0),
}


@pytest.mark.parametrize("how", list(ENDS))
def test_a_rank_that_ends_ends_the_wait_of_the_others(driver, tmp_path, how, capfd):
    ends, said, code = ENDS[how]
    note = str(tmp_path / "pid")
    body = f"""
total = reduced([1], SUM, group)
if rank == 1:
    open({note!r}, "w").write(str(os.getpid())); {ends}
os.dup2(os.open({note!r} + str(rank), os.O_WRONLY | os.O_CREAT), 2)
return gathered([rank], group, ranks)
"""
    wait = {"EMULATED_WAIT_S": "0.5"} if how == "slow" else {}
    started_s = time.monotonic()
    found, codes = run_ranks(driver, tmp_path, 3, body, **wait)
    assert time.monotonic() - started_s < 60
    assert (found, codes) == ([None] * 3, sorted([1, 1, code]))
    pid = (tmp_path / "pid").read_text()
    for rank in (0, 2):
        without = "" if how == "slow" else " without ncclAllGather, for"
        sentence = f"Rank 1 of 3 (process {pid}) {said}{without} which rank {rank} waits."
        assert (tmp_path / f"pid{rank}").read_text() == f"{sentence}\n"


def test_ranks_that_make_other_calls_end_in_a_sentence(driver, tmp_path):
    body = f"""
os.dup2(os.open({str(tmp_path / "said")!r} + str(rank), os.O_WRONLY | os.O_CREAT), 2)
return reduced([1] * (1 + rank), SUM, group)
"""
    found, codes = run_ranks(driver, tmp_path, 2, body)
    assert (found, codes) == ([None, None], [1, 1])
    sentence = (
        "Rank 0 calls ncclAllReduce of 8 bytes, and rank 1 answers with ncclAllReduce of 16 bytes: ranks of a group "
    )
    assert (tmp_path / "said0").read_text() == f"{sentence}make the same calls.\n"


def test_ranks_of_one_process_exchange_too(driver, tmp_path):
    """As torch's DataParallel has them: a card each, and one thread for all."""
    found = run_on_card(
        driver,
        """
groups, host = (c_void_p * 2)(), (ctypes.c_int64 * 1)(); nccl.ncclCommInitAll(groups, 2, (c_int * 2)(0, 1)); found = []
places = [c_void_p() for _ in groups]
for rank, place in enumerate(places):
    rt.cudaSetDevice(rank); rt.cudaMalloc(byref(place), c_size_t(8)); host[0] = rank + 20
    rt.cudaMemcpy(place, host, c_size_t(8), 1)
for group, place in zip(groups, places): nccl.ncclBroadcast(place, place, c_size_t(1), 4, 1, c_void_p(group), None)
for place in places: rt.cudaMemcpy(host, place, c_size_t(8), 2); found.append(host[0])
print(json.dumps(found))
""",
        EMULATED_ALL_RANKS="1",
        EMULATED_CARDS="2",
        EMULATED_PROCESSES=str(tmp_path / "job"),
    )
    assert found == [21, 21]


@pytest.fixture(scope="module")
def arithmetic(driver):
    """The library, for its arithmetic."""
    ctypes.CDLL(str(driver / "libemulatedcard.so"), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(driver / LIBRARIES["nccl"]))


def combined(library, first, second, kind: int, operation: int = 0):
    into = first.copy()
    library.nc_combine(into.ctypes, second.ctypes, ctypes.c_size_t(into.size), kind, operation)
    return into


def test_halves_of_every_value_are_added_as_numpy_does(arithmetic):
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        for addend in (np.float16(0), np.float16(1.5), np.float16(-6e-5), np.float16(3000)):
            other = np.full_like(every, addend)
            found, expected = combined(arithmetic, every, other, 6), every + other
            assert np.array_equal(found, expected, equal_nan=True)


def test_brain_floats_are_rounded_to_the_nearest_even_one(arithmetic):
    one, step = 0x3F80, 0x3B80  # 1 and 2^-8: halfway between 1 and the next number above it
    found = combined(arithmetic, np.array([one, one + 1], np.uint16), np.array([step, step], np.uint16), 9)
    assert found.tolist() == [one, one + 2]


@settings(max_examples=50)
@given(st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1, max_size=8), st.integers(2, 9))
def test_a_sum_over_equal_ranks_is_divided_into_their_values(arithmetic, values, ranks):
    own = np.array(values, np.int64)
    total = own.copy()
    for _ in range(ranks - 1):
        total = combined(arithmetic, total, own, 4)
    arithmetic.nc_divide(total.ctypes, ctypes.c_size_t(total.size), 4, ranks)
    assert total.tolist() == values
