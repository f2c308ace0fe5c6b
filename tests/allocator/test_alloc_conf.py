"""PYTORCH_ALLOC_CONF's text: held against torch's own parser, which the CPU build has too."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profiler.allocator import AllocatorConfig, parse_alloc_conf
from profiler.domain.errors import UsageError

MIB = 1024 * 1024


@pytest.fixture(autouse=True, scope="module")
def torch_settings() -> Iterator[None]:
    before = torch._C._accelerator_getAllocatorSettings()
    yield
    reset()
    torch._C._accelerator_setAllocatorSettings(before)


def reset() -> None:
    """Torch keeps these two from one text to the next (`AcceleratorAllocatorConfig::parseArgs`)."""
    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20,expandable_segments:False")


def torch_divisions() -> tuple[int, ...]:
    """`AcceleratorAllocatorConfig::roundup_power2_divisions` of the installed torch, for a size in each interval."""
    library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libc10.so"))
    function = library["_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm"]
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_size_t
    return tuple(function(1 << (20 + interval)) for interval in range(16))


def torch_accepts(text: str) -> bool:
    reset()
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except (ValueError, RuntimeError):
        return False
    return True


def we_accept(text: str) -> bool:
    try:
        parse_alloc_conf(text)
    except UsageError:
        return False
    return True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "expandable_segments:True",
        "expandable_segments:False , max_split_size_mb: 128",
        "expandable_segments:True,",
        "expandable_segments:true",
        "max_split_size_mb:20",
        "max_split_size_mb:19",
        "max_split_size_mb",
        "max_split_size_mb:",
        "max_split_size_mb=100",
        "large_segment_size_mb:10",
        "large_segment_size_mb:11,max_split_size_mb:11",
        "max_split_size_mb:21,large_segment_size_mb:22",
        "max_non_split_rounding_mb:19",
        "max_non_split_rounding_mb:20",
        "large_segment_size_mb:32,max_non_split_rounding_mb:31",
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:0.8",
        "garbage_collection_threshold:1.0",
        "roundup_power2_divisions:8",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:6",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "roundup_power2_divisions:[3:2]",
        "roundup_power2_divisions:[4:3]",
        "roundup_power2_divisions:[4:0],expandable_segments:True",
        "roundup_power2_divisions:[4:2",
        "pinned_use_background_threads:True",
        "pinned_use_background_threads:1",
    ],
)
def test_what_torch_refuses_is_refused_and_nothing_else(text):
    assert we_accept(text) == torch_accepts(text)


DIVISIONS = st.sampled_from([0, 1, 2, 4, 8, 16])
ENTRIES = st.lists(
    st.tuples(st.one_of(st.integers(0, 18).map(lambda power: str(1 << power)), st.just(">")), DIVISIONS), min_size=1
)


@given(ENTRIES)
def test_divisions_are_those_that_torch_reads(entries):
    text = f"roundup_power2_divisions:[{','.join(f'{start}:{divisions}' for start, divisions in entries)}]"
    torch._C._accelerator_setAllocatorSettings(text)
    assert parse_alloc_conf(text).roundup_power2_divisions == torch_divisions()


def test_the_documented_list():
    """From the notes on PYTORCH_ALLOC_CONF: below 512 MiB 1, 512 to 1024 MiB 2, 1 to 2 GiB 4, above 8."""
    text = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    assert parse_alloc_conf(text).roundup_power2_divisions == (1,) * 9 + (2, 4) + (8,) * 5


def test_settings_are_read():
    assert parse_alloc_conf("") == AllocatorConfig()
    assert parse_alloc_conf(
        "expandable_segments:True, max_split_size_mb:128,large_segment_size_mb:64,garbage_collection_threshold:0.6,"
        "per_process_memory_fraction:0.5,roundup_power2_divisions:4,backend:native,pinned_num_register_threads:8"
    ) == AllocatorConfig(
        expandable_segments=True,
        max_split_bytes=128 * MIB,
        large_segment_bytes=64 * MIB,
        max_non_split_rounding_bytes=64 * MIB,
        garbage_collection_threshold=0.6,
        per_process_memory_fraction=0.5,
        roundup_power2_divisions=(4,) * 16,
    )
    assert parse_alloc_conf("max_non_split_rounding_mb:50").max_non_split_rounding_bytes == 50 * MIB


def test_every_fault_is_reported_at_once_with_the_nearest_spelling():
    with pytest.raises(UsageError) as caught:
        parse_alloc_conf(
            "expandable_segment:True,max_split_size_mb:12,backend:cudaMallocAsync,expandable_segments:true"
        )
    sentences = [fault.sentence() for fault in caught.value.faults]
    assert len(sentences) == 4
    assert all(sentence.startswith("alloc_conf=") for sentence in sentences)
    assert "alloc_conf=expandable_segment:True: 'expandable_segment' is not a key" in sentences[0]
    assert sentences[0].endswith("Did you mean 'expandable_segments'?")
    assert "cudaMallocAsync) is not simulated" in sentences[1]
    assert "max_split_size_mb must be a whole number of at least 20" in sentences[2]
    assert sentences[3].endswith("Did you mean 'True'?")


@pytest.mark.parametrize("text", ["per_process_memory_fraction:1.1", "per_process_memory_fraction:x", "foo", "foo:1"])
def test_keys_of_cuda_are_checked_too(text):
    """`CUDAAllocatorConfig` is not in the CPU build."""
    assert not we_accept(text)


@pytest.mark.parametrize("threads", ["0", "3", "100", "129", "256", "-1", "x", ""])
def test_pinning_threads_must_be_a_power_of_two_up_to_128(threads):
    with pytest.raises(UsageError) as caught:
        parse_alloc_conf(f"pinned_num_register_threads:{threads}")
    (fault,) = caught.value.faults
    assert fault.sentence().startswith(f"alloc_conf=pinned_num_register_threads:{threads}")
    assert "must be a power of two up to 128" in fault.sentence()


@given(st.integers(0, 7))
def test_every_power_of_two_up_to_128_is_accepted(exponent):
    assert we_accept(f"pinned_num_register_threads:{1 << exponent}")
