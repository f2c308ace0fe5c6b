"""PYTORCH_ALLOC_CONF's text -> `AllocatorConfig`, or every fault in it.

Keys, limits and the meaning of values: `AcceleratorAllocatorConfig` (c10/core/AllocatorConfig.cpp) and
`CUDAAllocatorConfig` (c10/cuda/CUDAAllocatorConfig.cpp), torch 2.13. Stricter than PyTorch in one way: a value must be
a number and nothing else, where `std::stoull` takes ``20abc`` for 20.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from profiler.allocator.settings import (
    DEFAULT_LARGE_SEGMENT_BYTES,
    MIN_LARGE_BYTES,
    ROUNDUP_INTERVALS,
    AllocatorConfig,
    addresses_descend,
)
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.memory import MIB

KEY = "alloc_conf"
"""The key of the specification that faults name."""

MODELLED_KEYS = (
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
)
_FLAGS_WITHOUT_EFFECT = (
    "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "throw_on_cudamalloc_oom",
)
"""They change the host's memory, CUDA graphs, locks or messages, not the card's memory in a step."""
_COUNTS_WITHOUT_EFFECT = (
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_reserve_segment_size_mb",
)
_THREADS = "pinned_num_register_threads"
_MOST_THREADS = 128
"""`pinned_max_register_threads`, c10/cuda/CUDAAllocatorConfig.h."""

KEYS = (*MODELLED_KEYS, "backend", *_FLAGS_WITHOUT_EFFECT, *_COUNTS_WITHOUT_EFFECT, _THREADS)

_ITEM_SEPARATOR = re.compile(r",(?![^\[]*\])")
"""A comma outside brackets."""


def parse_alloc_conf(text: str, *, torch_version: str | None = None) -> AllocatorConfig:
    """Parse `text` into settings; empty text gives PyTorch's defaults. If a key is repeated, the last value counts.

    Args:
        text: PYTORCH_ALLOC_CONF's.
        torch_version: Of the process whose allocator is simulated; None: the newest.

    Raises:
        UsageError: Carries every fault found.
    """
    compact = "".join(text.split())
    values: dict[str, str] = {}
    reader = _Reader(values)
    for item in filter(None, _ITEM_SEPARATOR.split(compact)):
        key, _, value = item.partition(":")
        if key not in KEYS:
            reader.fault(item, f"'{key}' is not a key of PYTORCH_ALLOC_CONF; the keys are {', '.join(KEYS)}", key, KEYS)
        else:
            values[key] = value
    config = _config(reader)
    if reader.faults:
        raise UsageError(reader.faults)
    return replace(config, addresses_descend=torch_version is not None and addresses_descend(torch_version))


def alloc_conf_text(config: AllocatorConfig) -> str:
    """Return the text that `parse_alloc_conf` parses into `config`, without PyTorch's defaults."""
    divisions = config.roundup_power2_divisions
    items = {
        "expandable_segments:True": config.expandable_segments,
        f"garbage_collection_threshold:{config.garbage_collection_threshold:g}": config.garbage_collection_threshold
        > 0,
        f"large_segment_size_mb:{config.large_segment_bytes // MIB}": (
            config.large_segment_bytes != DEFAULT_LARGE_SEGMENT_BYTES
        ),
        f"max_non_split_rounding_mb:{config.max_non_split_rounding_bytes // MIB}": (
            # Its own default is the large segment's size.
            config.max_non_split_rounding_bytes != config.large_segment_bytes
        ),
        f"max_split_size_mb:{(config.max_split_bytes or 0) // MIB}": config.max_split_bytes is not None,
        f"per_process_memory_fraction:{config.per_process_memory_fraction:g}": config.per_process_memory_fraction < 1,
        f"roundup_power2_divisions:{_divisions_text(divisions)}": any(divisions),
    }
    return ",".join(item for item, is_changed in items.items() if is_changed)


def _divisions_text(divisions: Sequence[int]) -> str:
    """Return one number, or ``[1:4,2:0,8:2,>:1]``: the first also counts below it, ``>`` beyond the last."""
    if len(set(divisions)) == 1:
        return str(divisions[0])
    changes = [interval for interval in range(1, len(divisions)) if divisions[interval] != divisions[interval - 1]]
    # Up to the first change and from the last one on all are equal; in between, unlisted intervals are 0.
    listed = [changes[0] - 1, *range(changes[0], changes[-1])]
    items = [f"{1 << interval}:{divisions[interval]}" for interval in listed]
    return f"[{','.join([*items, f'>:{divisions[-1]}'])}]"


def known_items(text: str) -> str:
    """Return the items of `text` whose key is one of `KEYS`; leave out keys of other versions of torch."""
    items = _ITEM_SEPARATOR.split("".join(text.split()))
    return ",".join(item for item in items if item.partition(":")[0] in KEYS)


def _config(reader: "_Reader") -> AllocatorConfig:
    for key in _FLAGS_WITHOUT_EFFECT:
        reader.flag(key)
    for key in _COUNTS_WITHOUT_EFFECT:
        reader.count(key, minimum=0)
    reader.register_threads()
    reader.native_backend()
    large_mib = reader.count("large_segment_size_mb", minimum=MIN_LARGE_BYTES // MIB + 1)
    large_bytes = DEFAULT_LARGE_SEGMENT_BYTES if large_mib is None else large_mib * MIB
    split_mib = reader.count("max_split_size_mb", minimum=large_bytes // MIB)
    rounding_mib = reader.count("max_non_split_rounding_mb", minimum=large_bytes // MIB)
    threshold = reader.ratio("garbage_collection_threshold", above_zero=True)
    fraction = reader.ratio("per_process_memory_fraction", up_to_one=True)
    return AllocatorConfig(
        large_segment_bytes=large_bytes,
        max_split_bytes=None if split_mib is None else split_mib * MIB,
        # `parseArgs` resets it to the large segment's size before it reads the key.
        max_non_split_rounding_bytes=large_bytes if rounding_mib is None else rounding_mib * MIB,
        roundup_power2_divisions=reader.divisions("roundup_power2_divisions"),
        garbage_collection_threshold=0.0 if threshold is None else threshold,
        expandable_segments=reader.flag("expandable_segments"),
        per_process_memory_fraction=1.0 if fraction is None else fraction,
    )


class _Reader:
    """Reader of values by key. It collects faults and returns a default for each faulty value."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self.faults: list[Fault] = []

    def fault(self, found: str, problem: str, wrong: str = "", words: Sequence[str] = ()) -> None:
        self.faults.append(Fault(key=KEY, found=found, problem=problem, hint=nearest(wrong, words) if words else ""))

    def _wrong(self, key: str, problem: str, words: Sequence[str] = ()) -> None:
        value = self._values[key]
        self.fault(f"{key}:{value}", f"{key} must be {problem}", value, words)

    def flag(self, key: str) -> bool:
        """Return a value that is spelled True or False (`ConfigTokenizer::toBool`); False if absent."""
        value = self._values.get(key, "False")
        if value not in ("True", "False"):
            self._wrong(key, "True or False", ("True", "False"))
        return value == "True"

    def count(self, key: str, *, minimum: int) -> int | None:
        value = self._values.get(key)
        if value is None:
            return None
        if value.isdecimal() and int(value) >= minimum:
            return int(value)
        self._wrong(key, f"a whole number of at least {minimum}")
        return None

    def ratio(self, key: str, *, above_zero: bool = False, up_to_one: bool = False) -> float | None:
        value = self._values.get(key)
        if value is None:
            return None
        try:
            ratio = float(value)
        except ValueError:
            ratio = math.nan
        if (ratio > 0 if above_zero else ratio >= 0) and (ratio <= 1 if up_to_one else ratio < 1):
            return ratio
        self._wrong(key, f"a number {'above' if above_zero else 'from'} 0 {'up to' if up_to_one else 'and below'} 1")
        return None

    def register_threads(self) -> None:
        """Threads that pin host memory (`CUDAAllocatorConfig::parsePinnedNumRegisterThreads`)."""
        value = self._values.get(_THREADS)
        if value is not None and not (_is_power_of_two(value) and int(value) <= _MOST_THREADS):
            self._wrong(_THREADS, f"a power of two up to {_MOST_THREADS}")

    def native_backend(self) -> None:
        if self._values.get("backend", "native") != "native":
            self._wrong("backend", "native: CUDA's own allocator (cudaMallocAsync) is not simulated")

    def divisions(self, key: str) -> tuple[int, ...]:
        """Divisions by interval: one number for all, or ``[256:1,512:2,>:4]`` by the size in MiB that begins each.

        The first entry is for everything below as well, ``>`` for everything above the last. Source:
        `AcceleratorAllocatorConfig::parseRoundUpPower2Divisions`.
        """
        value = self._values.get(key)
        found = (0,) * ROUNDUP_INTERVALS if value is None else _read_divisions(value)
        if found is None:
            self._wrong(key, "a power of two, or a list such as [256:1,512:2,>:4] of powers of two")
            return (0,) * ROUNDUP_INTERVALS
        return found


def _read_divisions(value: str) -> tuple[int, ...] | None:
    """Return the divisions by interval; None if `value` does not have the form."""
    if not value.startswith("["):
        return (int(value),) * ROUNDUP_INTERVALS if _is_power_of_two(value) else None
    if not value.endswith("]"):
        return None
    by_interval = [0] * ROUNDUP_INTERVALS
    last: int | None = None
    for entry in value[1:-1].split(","):
        start, _, number = entry.partition(":")
        if not (number == "0" or _is_power_of_two(number)) or not (start == ">" or _is_power_of_two(start)):
            return None
        if start == ">":
            # After the interval of the last entry; the source uses interval 0 if there is no entry.
            rest = (last or 0) + 1
            by_interval[rest:] = [int(number)] * (ROUNDUP_INTERVALS - rest)
            continue
        interval = min(int(start).bit_length() - 1, ROUNDUP_INTERVALS - 1)
        if last is None:
            by_interval[:interval] = [int(number)] * interval
        by_interval[interval] = int(number)
        last = interval
    return tuple(by_interval)


def _is_power_of_two(text: str) -> bool:
    return text.isdecimal() and int(text).bit_count() == 1
