"""The emulated card as a program sees it by CUDA, the driver, NVML and NCCL."""

from emulation.building import NEW, run_on_card

from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS

T4 = KNOWN_GPUS["t4-16gb"]
MIB = 2**20


def test_memory_ends_where_that_of_the_card_ends(driver):
    found = run_on_card(
        driver,
        """
p, free, total = c_void_p(), c_size_t(), c_size_t()
before = (rt.cudaMemGetInfo(byref(free), byref(total)), free.value, total.value)
fits = rt.cudaMalloc(byref(p), c_size_t(free.value // 2**21 * 2**21))
second = rt.cudaMalloc(byref(c_void_p()), c_size_t(2**21))
error = rt.cudaGetLastError(), rt.cudaGetLastError()
rt.cudaFree(p)
rt.cudaMemGetInfo(byref(free), byref(total))
print(json.dumps([before, fits, second, error, free.value]))
""",
    )
    context = cuda_context_bytes(T4.compute_capability)
    before = [0, T4.memory_bytes - context, T4.memory_bytes]
    assert found == [before, 0, 2, [2, 0], T4.memory_bytes - context]


def test_without_its_limit_a_card_takes_more_than_any_card_has(driver):
    found = run_on_card(
        driver,
        """
card.em_lift_limit()
p, at, none, free, total = c_void_p(), c_void_p(), c_size_t(0), c_size_t(), c_size_t()
takes = [rt.cudaMalloc(byref(p), c_size_t(2**39)) for _ in range(4)]
whole_card = c_size_t(2**42 // 8 * 9)  # expandable segments reserve the addresses of more than a card, several times
takes += [cu.cuMemAddressReserve(byref(at), whole_card, none, c_void_p(), none) for _ in range(8)]
rt.cudaMemGetInfo(byref(free), byref(total))
print(json.dumps([takes, total.value - free.value, total.value]))
""",
    )
    assert found == [12 * [0], 4 * 2**39 + cuda_context_bytes(T4.compute_capability), 2**42]


def test_memory_is_taken_in_pieces_of_2_mib(driver):
    found = run_on_card(
        driver,
        """
free, total = c_size_t(), c_size_t()
rt.cudaMemGetInfo(byref(free), byref(total)); before = free.value
rt.cudaMalloc(byref(c_void_p()), c_size_t(1)); rt.cudaMemGetInfo(byref(free), byref(total))
print(json.dumps(before - free.value))
""",
    )
    assert found == 2 * MIB


def test_virtual_memory_counts_when_it_is_created_and_until_it_is_unmapped_and_released(driver):
    found = run_on_card(
        driver,
        """
free, total, at, piece = c_size_t(), c_size_t(), c_size_t(), c_size_t()
properties = (c_int * 8)(1, 0, 1, 0)
def used():
    cu.cuMemGetInfo_v2(byref(free), byref(total)); return start - free.value
cu.cuMemGetInfo_v2(byref(free), byref(total)); start = free.value
size = c_size_t(4 * 2**20)
cu.cuMemAddressReserve(byref(at), c_size_t(2**30), c_size_t(0), c_size_t(0), c_size_t(0)); reserved = used()
cu.cuMemCreate(byref(piece), size, properties, c_size_t(0)); created = used()
cu.cuMemMap(at, size, c_size_t(0), piece, c_size_t(0)); cu.cuMemRelease(piece); released = used()
written = (ctypes.c_char * 4).from_address(at.value); written[0] = b"x"
cu.cuMemUnmap(at, size)
unmapped = used()
again = cu.cuMemRelease(piece)
print(json.dumps([at.value % 2**21, reserved, created, released, unmapped, again, used()]))
""",
    )
    # A handle that is released twice is an invalid value (1), as for vLLM's segments that sleep when it ends.
    assert found == [0, 0, 4 * MIB, 4 * MIB, 0, 1, 0]


def test_visible_devices_are_read_as_cuda_reads_them(driver):
    program = """
count, bus = c_int(), (ctypes.c_char * 32)()
rt.cudaGetDeviceCount(byref(count))
names = []
for device in range(count.value):
    rt.cudaDeviceGetPCIBusId(bus, 32, device); names.append(bus.value.decode())
nvml.nvmlInit_v2(); listed = c_uint(); nvml.nvmlDeviceGetCount_v2(byref(listed))
print(json.dumps([names, listed.value]))
"""
    third = "GPU-01020304-0506-0708-090a-0b0c0d0e0f12"
    cases = {"": [], "-1": [], "1": [2], "2,0": [3, 1], "0,9,1": [1], third: [3], f"1,{third}": [2, 3], "GPU-x": []}
    for wanted, buses in cases.items():
        found = run_on_card(driver, program, EMULATED_CARDS="3", CUDA_VISIBLE_DEVICES=wanted)
        assert found == [[f"0000:{bus:02x}:00.0" for bus in buses], 3], wanted


def test_events_are_reached_at_once_or_when_host_and_card_have_met(driver):
    program = """
event = c_void_p(); rt.cudaEventCreate(byref(event)); rt.cudaEventRecord(event, None)
before = rt.cudaEventQuery(event); rt.cudaDeviceSynchronize()
print(json.dumps([before, rt.cudaEventQuery(event)]))
"""
    assert run_on_card(driver, program, EMULATED_EVENTS="early") == [0, 0]
    assert run_on_card(driver, program, EMULATED_EVENTS="late") == [600, 0]


def test_the_thread_that_watches_collectives_sees_late_events_later_than_others(driver):
    program = """
import ctypes, threading
libc = ctypes.CDLL(None); libc.pthread_self.restype = c_void_p
event = c_void_p(); rt.cudaEventCreate(byref(event)); rt.cudaEventRecord(event, None); rt.cudaDeviceSynchronize()
found = [rt.cudaEventQuery(event)]
def look():
    libc.pthread_setname_np(c_void_p(libc.pthread_self()), b"pt_nccl_watchdg"); found.append(rt.cudaEventQuery(event))
watching = threading.Thread(target=look); watching.start(); watching.join()
print(json.dumps(found))
"""
    assert run_on_card(driver, program, EMULATED_EVENTS="early") == [0, 0]
    assert run_on_card(driver, program, EMULATED_EVENTS="late") == [0, 600]


def test_a_stream_that_waits_for_a_capturing_one_takes_part_until_the_capture_ends(driver):
    found = run_on_card(
        driver,
        """
first, second, event, graph, status = c_void_p(), c_void_p(), c_void_p(), c_void_p(), c_int()
for stream in (first, second): rt.cudaStreamCreate(byref(stream))
rt.cudaEventCreate(byref(event))
def captures():
    rt.cudaStreamIsCapturing(second, byref(status)); return status.value
rt.cudaStreamBeginCapture(first, 0); rt.cudaEventRecord(event, first); before = captures()
rt.cudaStreamWaitEvent(second, event, 0); during = captures()
rt.cudaStreamEndCapture(first, byref(graph))
print(json.dumps([before, during, captures()]))
""",
    )
    assert found == [0, 1, 0]


def test_nvml_lists_what_a_process_holds_and_keeps_the_drivers_part_apart(driver):
    found = run_on_card(
        driver,
        """
import os
class Memory(ctypes.Structure):
    _fields_ = [("version", c_uint), *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used"))]
class Process(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("bytes", ctypes.c_ulonglong), ("gi", c_uint), ("ci", c_uint)]
rt.cudaMalloc(byref(c_void_p()), c_size_t(10 * 2**20))
nvml.nvmlInit_v2(); device, memory, count, processes = c_void_p(), Memory(), c_uint(8), (Process * 8)()
nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(device)); nvml.nvmlDeviceGetMemoryInfo_v2(device, byref(memory))
nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, byref(count), processes)
print(json.dumps([memory.total, memory.reserved, memory.used, count.value, processes[0].pid == os.getpid()]))
""",
    )
    used = 10 * MIB + cuda_context_bytes(T4.compute_capability)
    assert found == [15_360 * MIB, 15_360 * MIB - T4.memory_bytes, used, 1, True]


def test_a_forked_process_has_neither_context_nor_memory(driver):
    found = run_on_card(
        driver,
        """
import os
address = c_void_p(); rt.cudaMalloc(byref(address), c_size_t(2**22))
reader, writer = os.pipe()
if os.fork() == 0:
    attributes = (c_int * 6)(); rt.cudaPointerGetAttributes(attributes, address)
    os.write(writer, str(attributes[0]).encode()); os._exit(0)
print(json.dumps(int(os.read(reader, 8))))
""",
    )
    assert found == 0


def test_a_card_has_a_context_once_it_is_used(driver):
    """torch asks, and passes by a card without one; else each rank would hold a context on the first card."""
    found = run_on_card(
        driver,
        """
flags, active = c_uint(), c_int()
def contexts():
    for device in (0, 1):
        cu.cuDevicePrimaryCtxGetState(device, byref(flags), byref(active)); yield active.value
before = list(contexts()); rt.cudaSetDevice(1)
print(json.dumps([before, list(contexts())]))
""",
        EMULATED_CARDS="2",
    )
    assert found == [[0, 0], [0, 1]]


def test_sums_over_ranks_are_of_values_that_all_of_them_hold(driver):
    found = run_on_card(
        driver,
        """
class Id(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 128)]
communicator, address = c_void_p(), c_void_p(); rt.cudaMalloc(byref(address), c_size_t(4096))
nccl.ncclCommInitRank(byref(communicator), 4, Id(), 1)
values = (ctypes.c_int64 * 8).from_address(address.value); values[0] = 5
INT64, SUM, MAXIMUM = 4, 0, 2
nccl.ncclAllReduce(address, address, c_size_t(1), INT64, SUM, communicator, None); total = values[0]
nccl.ncclAllReduce(address, address, c_size_t(1), INT64, MAXIMUM, communicator, None); most = values[0]
nccl.ncclAllGather(address, c_void_p(address.value + 8), c_size_t(1), INT64, communicator, None)
print(json.dumps([total, most, list(values[1:6])]))
""",
    )
    assert found == [20, 20, [20, 20, 20, 20, 0]]


def test_reads_of_bytes_that_nobody_computed_are_marked_once_by_their_producer(driver):
    found = run_on_card(
        driver,
        """
address, host = c_void_p(), (ctypes.c_char * 64)(); rt.cudaMalloc(byref(address), c_size_t(4096))
def read(offset, size): rt.cudaMemcpy(host, c_void_p(address.value + offset), c_size_t(size), 2)
rt.cudaMemcpy(address, host, c_size_t(64), 1); read(0, 64)
rt.cudaMemset(c_void_p(address.value + 64), 0, c_size_t(64)); read(32, 64)
text = ctypes.create_string_buffer(4096); none = card.em_marks(text, 4096)
card.em_values_unknown(c_void_p(address.value + 16), c_size_t(8), b"a kernel"); read(0, 16); read(24, 8)
still_none = card.em_marks(text, 4096)
read(8, 16); read(16, 4); read(1000, 4); card.em_marks(text, 4096)
print(json.dumps([none, still_none, text.value.decode()]))
""",
    )
    marks = "value\tbytes of a kernel\t2\nvalue\tbytes of memory that nothing was written to\t1\n"
    assert found == [0, 0, marks]


def test_a_pointer_within_an_allocation_says_where_it_is(driver):
    """vLLM's own all-reduce asks for the range of a pointer, and opens it in another process."""
    found = run_on_card(
        driver,
        """
p, start, size, kind, managed = c_void_p(), c_void_p(), c_size_t(), c_uint(7), (c_uint * 2)(7, 7)
rt.cudaMalloc(byref(p), c_size_t(3 * 2**20))
inside = c_void_p(p.value + 5000)
codes = [cu.cuPointerGetAttribute(byref(to), which, inside) for to, which in ((start, 11), (size, 12), (kind, 2))]
codes.append(cu.cuPointerGetAttribute(managed, 8, inside))
outside = cu.cuPointerGetAttribute(byref(start), 11, c_void_p(4096))
print(json.dumps([codes, start.value == p.value, size.value, kind.value, list(managed), outside]))
""",
    )
    assert found == [[0] * 4, True, 4 * MIB, 2, [0, 7], 1]


def test_a_large_copy_of_unknown_bytes_takes_no_host_memory(driver):
    """Such as weights that are offloaded. A copy with bytes that are right among them is made."""
    found = run_on_card(
        driver,
        """
import mmap
size = 2**26
address, host = c_void_p(), mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
to = ctypes.addressof(c_int.from_buffer(host))
rt.cudaMalloc(byref(address), c_size_t(size))
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def copied(offset):
    before = resident()
    assert rt.cudaMemcpy(c_void_p(to + offset), address, c_size_t(size - offset), 2) == 0
    return (resident() - before) // 2**20
host[:size] = b"x" * size
taken = [copied(1000), copied(1000)]
edges = host[999:1001].hex(), host[size - 1:].hex()
text = ctypes.create_string_buffer(4096); card.em_marks(text, 4096)
rt.cudaMemcpy(c_void_p(address.value + 5000), b"right", c_size_t(5), 1)
taken.append(copied(0))
print(json.dumps([taken, edges, host[5000:5005].decode(), text.value.decode()]))
""",
    )
    (dropped, again, made), edges, word, marks = found
    assert dropped < -60  # MiB: all but the pages at both ends
    assert abs(again) < 2
    assert edges == ["7800", "00"]
    assert marks == "value\tbytes of memory that nothing was written to\t2\n"
    assert word == "right"
    assert made > 60


def test_an_unseen_entry_point_ends_the_process_by_name_or_marks_it(driver):
    by_name = f"""
function = c_void_p(); cu.cuGetProcAddress_v2(b"cuNeverSeenBefore", byref(function), 13000, ctypes.c_uint64(0), None)
looked_up = function.value
text = ctypes.create_string_buffer(4096); before = card.em_marks(text, 4096)
rt.{NEW}(); ctypes.CFUNCTYPE(c_int)(looked_up)()
card.em_marks(text, 4096); print(json.dumps([before, rt.cudaProfilerStart(), text.value.decode()]))
"""
    marks = f"entry point\tlibcudart:{NEW}\t1\nentry point\tlibcuda:cuNeverSeenBefore\t1\n"
    assert run_on_card(driver, by_name) == [0, 0, marks]
    refused = run_on_card(driver, by_name, check=False, EMULATED_STRICT="1")
    assert refused.returncode == 2
    assert refused.stderr == (
        f"The emulated driver has no answer for {NEW} of libcudart: this program cannot be emulated; "
        "strict=false goes on and marks the record.\n"
    )
