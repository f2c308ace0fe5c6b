"""Settings written as PYTORCH_ALLOC_CONF's text are read as the same settings."""

from hypothesis import given
from hypothesis import strategies as st

from profiler.allocator import AllocatorConfig, parse_alloc_conf
from profiler.allocator.alloc_conf import alloc_conf_text, known_items

MIB = 1024 * 1024
DIVISIONS = st.one_of(
    st.sampled_from([0, 1, 4, 16]).map(lambda number: (number,) * 16),
    st.lists(st.sampled_from([0, 1, 2, 8]), min_size=16, max_size=16).map(tuple),
)


@given(
    st.builds(
        AllocatorConfig,
        large_segment_bytes=st.sampled_from([20 * MIB, 32 * MIB]),
        max_split_bytes=st.sampled_from([None, 32 * MIB, 200 * MIB]),
        max_non_split_rounding_bytes=st.sampled_from([32 * MIB, 64 * MIB]),
        roundup_power2_divisions=DIVISIONS,
        garbage_collection_threshold=st.sampled_from([0.0, 0.25, 0.8]),
        expandable_segments=st.booleans(),
        per_process_memory_fraction=st.sampled_from([0.0, 0.5, 1.0]),
    )
)
def test_the_text_means_the_settings(config):
    assert parse_alloc_conf(alloc_conf_text(config)) == config


def test_defaults_are_left_out():
    assert alloc_conf_text(AllocatorConfig()) == ""
    text = "expandable_segments:True,garbage_collection_threshold:0.8,max_split_size_mb:128"
    assert alloc_conf_text(parse_alloc_conf(text)) == text
    assert alloc_conf_text(parse_alloc_conf("large_segment_size_mb:32")) == "large_segment_size_mb:32"
    assert alloc_conf_text(parse_alloc_conf("roundup_power2_divisions:4")) == "roundup_power2_divisions:4"


def test_only_known_items_are_kept():
    assert known_items(" a:1, max_split_size_mb: 32 ,roundup_power2_divisions:[1:2,>:4],b:[1,2]") == (
        "max_split_size_mb:32,roundup_power2_divisions:[1:2,>:4]"
    )
    assert known_items("") == ""
