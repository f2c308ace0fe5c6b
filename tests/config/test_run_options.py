"""Each option is declared once; `sweeps/config.yaml` agrees with that."""

from pathlib import Path

import pytest
import yaml

from profiler.config.options.reading import show
from profiler.config.options.run_options import RUN_KEYS, RUN_OPTIONS, RunOptions, read_run_options
from profiler.domain.errors import UsageError

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "sweeps" / "config.yaml").read_text())


def test_the_configuration_file_has_every_option_with_its_default_in_order():
    assert tuple(key for key in CONFIG if key in RUN_KEYS) == RUN_KEYS
    assert read_run_options(CONFIG) == RunOptions()


@pytest.mark.parametrize("key", RUN_KEYS)
def test_null_is_allowed_where_its_meaning_is_declared(key):
    values = {**CONFIG, key: None}
    if RUN_OPTIONS[key].null:
        assert getattr(read_run_options(values), key) is None
    else:
        with pytest.raises(UsageError) as caught:
            read_run_options(values)
        assert [fault.key for fault in caught.value.faults] == [key]


NUMBERS = [key for key in RUN_KEYS if key.endswith("_s") or key in ("jobs", "price_per_hour")]


@pytest.mark.parametrize("key", NUMBERS)
def test_the_declared_limits_are_those_of_the_reader(key):
    bounds = RUN_OPTIONS[key].kind.bounds
    for value in (bounds.minimum, bounds.maximum):
        allowed = value != bounds.minimum or bounds.is_minimum_allowed
        if allowed:
            assert getattr(read_run_options({**CONFIG, key: value}), key) == value
        else:
            with pytest.raises(UsageError, match=f"^{key}={show(value)}: must be more than 0 seconds.$"):
                read_run_options({**CONFIG, key: value})
    for value in (bounds.minimum - 1, bounds.maximum + 1):
        with pytest.raises(UsageError, match=f"^{key}={value}: must be a"):
            read_run_options({**CONFIG, key: value})
