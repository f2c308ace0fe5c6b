"""Options are declared once: what their declarations say is what their reader does and what help texts show."""

from dataclasses import fields
from types import NoneType
from typing import get_args, get_type_hints

import pytest

from profiler.advise.command import AdviseOptions
from profiler.claims.command import ClaimsOptions
from profiler.config.options.option import FLAG, Option, count, options_of, read_options
from profiler.config.options.run_options import RunOptions, option_lines
from profiler.domain.errors import UsageError
from profiler.emulation.main import EmulationOptions
from profiler.estimate.command import EstimateOptions
from profiler.monitor.command import MonitorOptions
from profiler.replay.command import ReplayOptions
from profiler.report.command import ReportOptions
from profiler.run.command import ScriptOptions
from profiler.seams.main import SeamsOptions
from profiler.solve.command import SolveOptions

DECLARED = (
    RunOptions,
    ScriptOptions,
    MonitorOptions,
    EstimateOptions,
    SolveOptions,
    AdviseOptions,
    ClaimsOptions,
    ReplayOptions,
    ReportOptions,
    EmulationOptions,
    SeamsOptions,
)

EACH = [
    (declared, field.name, option)
    for declared in DECLARED
    for field, option in zip(fields(declared), options_of(declared).values(), strict=True)
]


@pytest.mark.parametrize("declared", DECLARED)
def test_an_option_that_is_left_out_has_its_default(declared):
    assert read_options(declared, {"of_another_command": 1}) == declared()


@pytest.mark.parametrize(("declared", "attribute", "option"), EACH)
def test_a_default_is_read_as_it_is_shown(declared, attribute, option):
    found = read_options(declared, {option.name: option.kind.read_text(option.default_text)})
    assert getattr(found, attribute) == option.default
    assert type(getattr(found, attribute)) is type(option.default)


@pytest.mark.parametrize(("declared", "attribute", "option"), EACH)
def test_null_is_declared_where_the_type_has_none(declared, attribute, option):
    assert bool(option.null) == (NoneType in get_args(get_type_hints(declared)[attribute]))
    if option.null:
        assert getattr(read_options(declared, {option.name: None}), attribute) is None
    else:
        with pytest.raises(UsageError) as caught:
            read_options(declared, {option.name: None})
        assert [fault.key for fault in caught.value.faults] == [option.name]


def test_lines_of_a_help_text():
    options = (
        Option(name="steps", kind=count(), default=3, meaning="end after N steps", unit="steps", null="run to the end"),
        Option(name="jobs", kind=count(), default=None, meaning="trials at once", unit="trials", null="one per GPU"),
        Option(name="a_long_name", kind=FLAG, default=False, meaning=" ".join(["word"] * 20)),
    )
    assert option_lines(options, indent=16).splitlines() == [
        "  steps=N|null  end after N steps; null: run to the end (default: 3 steps)",
        "  jobs=N        trials at once (default: one per GPU)",
        "  a_long_name=true|false",
        " " * 16 + "word word word word word word word word word word word word word",
        " " * 16 + "word word word word word word word (default: false)",
    ]
