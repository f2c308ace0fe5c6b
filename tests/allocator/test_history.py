"""A snapshot is read into typed values, whatever version of torch wrote it, or refused in one sentence."""

import pytest
from own_histories import ALLOC, FREE, recorded

from profiler.allocator import AllocatorConfig
from profiler.allocator.histories.history import Action, read_history
from profiler.allocator.snapshot_facts import recorded_config
from profiler.domain.errors import UsageError

MIB = 1024 * 1024


def snapshot() -> dict:
    return recorded([(ALLOC, 5 * MIB, 0), (ALLOC, 1, 7), (FREE, 0, 0), (ALLOC, 3 * MIB, 0)]).snapshot()


def test_entries_and_segments_are_typed():
    history = read_history(snapshot())
    assert [entry.action for entry in history.entries] == [
        "segment_alloc", "alloc", "segment_alloc", "alloc", "free_requested", "free_completed", "alloc",
    ]  # fmt: skip
    assert history.streams == (0, 7)
    assert history.device == 0
    assert history.config == AllocatorConfig()
    large, small = history.segments
    assert (large.stream, large.is_small, large.page_bytes) == (0, False, None)
    assert (small.stream, small.is_small, small.page_bytes) == (7, True, None)
    assert [(block.size_bytes, block.requested_bytes, block.state) for block in large.blocks] == [
        (3 * MIB, 3 * MIB, "in use"),
        (17 * MIB, 0, "free"),
    ]


def test_an_entry_that_changes_no_memory_is_kept_as_such():
    changed = snapshot()
    changed["device_traces"][0] += [
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0},
        {"action": "workspace_snapshot"},
        {"action": "other", "size": "?"},
    ]
    assert [entry.action for entry in read_history(changed).entries[-3:]] == [Action.OTHER] * 3


def test_what_the_driver_had_left_is_read_of_an_oom():
    changed = snapshot()
    changed["device_traces"][0].append({"action": "oom", "device_free": 77, "size": 512, "stream": 0})
    entry = read_history(changed).entries[-1]
    assert (entry.action, entry.device_free_bytes, entry.size_bytes) == (Action.OOM, 77, 512)
    assert str(entry) == "oom of 512"


def test_the_format_of_torch_2_0_is_read():
    """No block addresses, no types of segments and streams; sizes asked for in a history of each block."""
    changed = snapshot()
    changed["segments"] = [
        {"address": segment["address"], "blocks": [{key: block[key] for key in ("size", "state")} for block in blocks]}
        for segment in changed["segments"]
        for blocks in [segment["blocks"]]
    ]
    del changed["allocator_settings"]
    history = read_history(changed)
    assert [segment.is_small for segment in history.segments] == [False, True]
    assert history.segments[0].blocks[0].requested_bytes == history.segments[0].blocks[0].size_bytes == 3 * MIB
    assert history.segments[1].blocks[1].address == history.segments[1].blocks[0].address + 512


def test_the_device_with_the_most_entries_is_read():
    changed = snapshot()
    changed["device_traces"] = [[], changed["device_traces"][0], changed["device_traces"][0][:1]]
    for segment in changed["segments"]:
        segment["device"] = 1
    assert read_history(changed).device == 1
    assert len(read_history(changed).segments) == 2
    assert len(read_history(changed, device=2).entries) == 1
    assert read_history(changed, device=2).segments == ()
    with pytest.raises(UsageError, match="device=3: the snapshot has 0, 1, 2"):
        read_history(changed, device=3)


def test_segments_are_enough_to_know_a_device():
    changed = snapshot()
    changed["device_traces"] = []
    for segment in changed["segments"]:
        segment["device"] = 5
    assert read_history(changed).device == 5


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda s: s.pop("segments"),
            "snapshot=value of type dict: must be a mapping with 'segments' and 'device_traces'",
        ),
        (lambda s: s.update(device_traces={}), "_record_memory_history"),
        (lambda s: s.update(device_traces=["?"]), "device_traces[0]='?': must be a list"),
        (lambda s: s["device_traces"][0].insert(3, []), "device_traces[0][3]=value of type list: must be a mapping"),
        (
            lambda s: s["device_traces"][0][0].update(action=[]),
            "device_traces[0][0].action=value of type list: must be a text",
        ),
        (
            lambda s: s["device_traces"][0][0].update(size=0),
            "device_traces[0][0].size=0: must be a whole number from 1",
        ),
        (lambda s: s["device_traces"][0][0].update(size=True), "[0].size=value of type bool"),
        (lambda s: s["device_traces"][0][0].update(size=1 << 50), ".size=1125899906842624"),
        (lambda s: s["device_traces"][0][0].update(size=10**5000), ".size=value of type int"),
        (lambda s: s["device_traces"][0][0].update(addr="0x7f"), "addr '0x7f', stream 0: both must be whole numbers"),
        (lambda s: s["device_traces"][0][0].pop("addr"), "addr None, stream 0"),
        (lambda s: s["device_traces"][0][0].update(stream=1.5), "stream 1.5"),
        (lambda s: s["segments"].append(3), "segments[2]=3: must be a mapping"),
        (lambda s: s["segments"][0].update(blocks=7), "segments[0]=value of type dict: must be a mapping with"),
        (lambda s: s["segments"][0].update(segment_pool_id=7), "segments[0].segment_pool_id=7: must be a pair"),
        (lambda s: s["segments"][0].update(stream="x"), "segment at 0x7f0000000000, stream='x'"),
        (
            lambda s: s["segments"][0]["blocks"][1].update(size=0),
            "segment at 0x7f0000000000, block 1=value of type dict",
        ),
        (lambda s: s["segments"][0]["blocks"].append(None), "segment at 0x7f0000000000, block 2=None"),
        (lambda s: s["segments"][0]["blocks"][1].update(address=1), "must begin where the one before ends"),
        (lambda s: s["segments"].append(s["segments"][0]), "two that overlap at 0x7f0000000000: must lie apart"),
        (lambda s: s.update(allocator_settings=[1]), "allocator_settings=value of type list: must be a mapping"),
    ],
)
def test_what_is_no_snapshot_is_named(change, sentence):
    changed = snapshot()
    change(changed)
    with pytest.raises(UsageError) as caught:
        read_history(changed)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("found", [None, 3, "text", [], [{"address": 1, "blocks": []}], {1: 2}])
def test_anything_else_is_no_snapshot(found):
    with pytest.raises(UsageError, match="must be a mapping with 'segments' and 'device_traces'"):
        read_history(found)


# ---- settings --------------------------------------------------------------------------------------------------------


def config(**settings) -> AllocatorConfig:
    return recorded_config(settings, has_expandable=None)


def test_settings_are_read_from_the_text():
    found = config(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:32,large_segment_size_mb:24")
    assert (found.max_split_bytes, found.large_segment_bytes) == (32 * MIB, 24 * MIB)
    assert config(PYTORCH_ALLOC_CONF="expandable_segments:True").expandable_segments
    assert config() == AllocatorConfig()


def test_single_values_count_more_than_the_text():
    found = config(
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:32,garbage_collection_threshold:0.5,expandable_segments:True",
        max_split_size=64 * MIB,
        garbage_collection_threshold=0.25,
        expandable_segments=False,
        roundup_power2_divisions={"1": 0, "2": 4, "4": 0, "16": 8},
    )
    assert found.max_split_bytes == 64 * MIB
    assert found.garbage_collection_threshold == 0.25
    assert not found.expandable_segments
    assert found.roundup_power2_divisions == (0, 4, 0, 8, *(0,) * 12)
    assert config(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:32", max_split_size=-1).max_split_bytes is None


def test_the_segments_count_more_than_the_settings():
    assert recorded_config({}, has_expandable=True).expandable_segments
    assert not recorded_config({"expandable_segments": True}, has_expandable=False).expandable_segments
    asked = recorded([(ALLOC, 1, 0)]).snapshot() | {"allocator_settings": {"expandable_segments": True}}
    assert not read_history(asked).config.expandable_segments
    grown = recorded([(ALLOC, 1, 0)], alloc_conf="expandable_segments:True").snapshot() | {"allocator_settings": {}}
    assert read_history(grown).config.expandable_segments
    assert read_history(grown).segments[0].page_bytes == 2 * MIB


def test_keys_of_other_versions_of_torch_are_left_out():
    found = config(PYTORCH_CUDA_ALLOC_CONF="roundup_bypass_threshold_mb:16, max_split_size_mb:32, new_in_2030:[1,2]")
    assert found == AllocatorConfig(max_split_bytes=32 * MIB)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"PYTORCH_CUDA_ALLOC_CONF": 3},
            "allocator_settings.PYTORCH_CUDA_ALLOC_CONF=value of type int: must be a text",
        ),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:3"}, "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:3: "),
        ({"max_split_size": "x"}, "allocator_settings.max_split_size='x': must be a whole number"),
        ({"garbage_collection_threshold": 2}, "allocator_settings.garbage_collection_threshold=value of type int"),
        ({"roundup_power2_divisions": [1]}, "allocator_settings.roundup_power2_divisions=value of type list"),
        ({"roundup_power2_divisions": {"1": 3}}, "must be powers of two by interval"),
    ],
)
def test_a_setting_that_cannot_be_read_is_named(settings, sentence):
    with pytest.raises(UsageError) as caught:
        config(**settings)
    assert sentence in str(caught.value)
