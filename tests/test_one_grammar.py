"""One text has one meaning: the same value, or a fault, by the reader of each command, for each type of key."""

from importlib import import_module

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from maintenance.words import read_words
from profiler.advise.command import read_command as advise
from profiler.claims.command import read_command as claims
from profiler.commands import COMMANDS as ALL
from profiler.config.models.lookup import builtin_architecture
from profiler.config.options.command_words import HELP_FLAGS, as_pairs
from profiler.config.options.reading import FieldReader
from profiler.config.options.run_options import read_run_options
from profiler.config.trials.specification import parse_point
from profiler.config.verl.sources import override_source
from profiler.domain.errors import EXIT_OK, UsageError
from profiler.emulation.main import read_command as emulation
from profiler.estimate.command import read_command as estimate
from profiler.forecast.command import read_command as forecast
from profiler.monitor.command import read_command as monitor
from profiler.replay.command import read_command as replay
from profiler.report.command import read_command as report
from profiler.run.command import read_command as run
from profiler.seams.main import read_command as seams
from profiler.share.command import read_command as share
from profiler.solve.command import read_command as solve
from profiler.sweep.command import pairs_of
from profiler.sweep.command import read_command as sweep
from profiler.sweep.prepared.composition import compose

FAULT = "a fault"

TEXTS = {
    # text: count, number, flag, path
    "8": (8, 8.0, FAULT, "8"),
    "1:30": (FAULT, FAULT, FAULT, "1:30"),
    "1:30:00": (FAULT, FAULT, FAULT, "1:30:00"),
    "0400": (FAULT, FAULT, FAULT, "0400"),
    "010": (FAULT, FAULT, FAULT, "010"),
    "0x10": (FAULT, FAULT, FAULT, "0x10"),
    "0b1": (FAULT, FAULT, FAULT, "0b1"),
    "0o7": (FAULT, FAULT, FAULT, "0o7"),
    "1_0": (10, 10.0, FAULT, "1_0"),
    "1e1": (FAULT, 10.0, FAULT, "1e1"),
    "8.0": (FAULT, 8.0, FAULT, "8.0"),
    ".5": (FAULT, 0.5, FAULT, ".5"),
    "+8": (8, 8.0, FAULT, "+8"),
    "nan": (FAULT, FAULT, FAULT, "nan"),
    "inf": (FAULT, FAULT, FAULT, "inf"),
    ".inf": (FAULT, FAULT, FAULT, ".inf"),
    "-.inf": (FAULT, FAULT, FAULT, "-.inf"),
    "8 ": (8, 8.0, FAULT, "8"),
    "8 # rows": (FAULT, FAULT, FAULT, "8 # rows"),
    "'8'": (FAULT, FAULT, FAULT, "8"),
    '"8"': (FAULT, FAULT, FAULT, "8"),
    "!!int 8": (FAULT, FAULT, FAULT, "!!int 8"),
    "&a 8": (FAULT, FAULT, FAULT, "&a 8"),
    "2024-01-01": (FAULT, FAULT, FAULT, "2024-01-01"),
    "true": (FAULT, FAULT, True, "true"),
    "True": (FAULT, FAULT, True, "True"),
    "FALSE": (FAULT, FAULT, False, "FALSE"),
    "on": (FAULT, FAULT, FAULT, "on"),
    "yes": (FAULT, FAULT, FAULT, "yes"),
    "no": (FAULT, FAULT, FAULT, "no"),
    "y": (FAULT, FAULT, FAULT, "y"),
    "1": (1, 1.0, FAULT, "1"),
    "~": (FAULT, FAULT, FAULT, "~"),
    "": (FAULT, FAULT, FAULT, FAULT),
    "''": (FAULT, FAULT, FAULT, FAULT),
    "[8]": (FAULT, FAULT, FAULT, "[8]"),
    "[8,]": (FAULT, FAULT, FAULT, "[8,]"),
    "[8": (FAULT, FAULT, FAULT, "[8"),
    "{a: 1}": (FAULT, FAULT, FAULT, "{a: 1}"),
    "{a: 1, a: 2}": (FAULT, FAULT, FAULT, "{a: 1, a: 2}"),
    "8,": (FAULT, FAULT, FAULT, "8,"),
    "'8": (FAULT, FAULT, FAULT, "'8"),
    "٣": (FAULT, FAULT, FAULT, "٣"),
    "9" * 400: (FAULT, FAULT, FAULT, "9" * 400),
}

HYDRA = OverridesParser.create()

DEFAULTS = compose(sweep(["+grid=logprobs"]))

ARCHITECTURE = builtin_architecture("tiny")


def point(values, name):
    """The value of a key in the specification of a trial."""
    given = {"backend": "simulated", "model": "tiny", **values}
    return getattr(parse_point(given, architecture_of=lambda _: ARCHITECTURE), name)


def only(command):
    """A command, unless it has faults."""
    if command.faults:
        raise UsageError(command.faults)
    return command


def key_of(word):
    return word.lstrip("-").partition("=")[0]


def of_sweep(*words):
    key = key_of(words[0])
    command = only(sweep(words))
    values = command.axes[key]
    if len(values) > 1:
        raise UsageError([])
    return point({key: values[0]}, key)


def of_rest(read, *others):
    """The trial of a command whose other words are those of an estimate."""

    def found(*words):
        key, command = key_of(words[0]), only(read([*others, *words]))
        keys = getattr(command, "rest", command).keys
        if key not in keys:
            raise UsageError([])
        return point({key: keys[key]}, key)

    return found


def of_monitor(*words):
    """Keys of a trial reach an estimate as they are written."""
    return of_rest(estimate)(monitor([*words, "true"]).estimate[0])


def option(*words):
    key = key_of(words[0])
    (setting,) = only(sweep(words)).settings
    return getattr(read_run_options(DEFAULTS | {key: HYDRA.parse_override(setting).value()}), key)


def of_run(script):
    return lambda *words: getattr(run([*words, script]).options, key_of(words[0]))


def of_words(read):
    """A key of a maintainer's tool."""

    def found(*words):
        values, faults = read_words(words, {"key": None})
        reader = FieldReader(values)
        value = read(reader)
        if faults or reader.faults:
            raise UsageError([*faults, *reader.faults])
        return value

    return found


def attribute(name, read, *others):
    return lambda *words: getattr(only(read([*others, *words])).options, name)


def no_claims(words):
    return claims(words, ())


def readers(script):
    """By type: reader of the words of one key, for each command that has a key of the type."""
    of_script = of_run(script)
    trial = {
        "sweep": of_sweep,
        "estimate": of_rest(estimate),
        "solve": of_rest(solve, "max_completion_length"),
        "advise": of_rest(advise),
        "forecast": of_rest(forecast, "completions=400"),
        "share": of_rest(share, "results/x"),
        "monitor": of_monitor,
    }
    counts = {(name, "seed"): read for name, read in trial.items()}
    numbers = {(name, "beta"): read for name, read in trial.items()}
    flags = {(name, "gradient_checkpointing"): read for name, read in trial.items()}
    return {
        0: counts
        | {
            ("sweep", "jobs"): option,
            ("run", "steps"): of_script,
            ("run", "prompt_tokens"): of_script,
            ("replay", "device"): attribute("device", replay, "x"),
            ("forecast", "seeds"): attribute("seeds", forecast, "completions=400"),
            ("accuracy", "key"): of_words(lambda reader: reader.count("key")),
        },
        1: numbers
        | {
            ("sweep", "timeout_s"): option,
            ("run", "timeout_s"): of_script,
            ("estimate", "gpu_memory_gib"): lambda *words: float(only(estimate(words)).keys["gpu"].removesuffix("GiB")),
        },
        2: flags
        | {
            ("sweep", "snapshot"): option,
            ("run", "breakdown"): of_script,
            ("estimate", "strict"): attribute("strict", estimate),
            ("solve", "confirm"): attribute("confirm", solve, "max_completion_length"),
            ("advise", "confirm"): attribute("confirm", advise),
            ("claims", "write"): attribute("write", no_claims),
            ("share", "confirm"): attribute("confirm", share, "results/x"),
            ("forecast", "levers"): attribute("levers", forecast, "completions=400"),
            ("emulation", "strict"): attribute("strict", emulation, "check"),
            ("seams", "all"): attribute("lists_all", seams),
            ("accuracy", "key"): of_words(lambda reader: reader.flag("key")),
        },
        3: {
            ("sweep", "results_dir"): lambda *words: str(option(*words)),
            ("run", "results_dir"): lambda *words: str(of_script(*words)),
            ("monitor", "results_dir"): lambda *words: str(monitor([*words, "true"]).options.results_dir),
            ("claims", "results_dir"): lambda *words: str(only(no_claims(words)).options.results_dir),
            ("share", "file"): lambda *words: str(only(share(["results/x", *words])).options.file),
            ("report", "into"): attribute("into", report, "x"),
            ("replay", "figure"): lambda *words: str(only(replay(["x", *words])).options.figure),
            ("forecast", "log"): lambda *words: only(forecast(words)).options.log or FAULT,
            ("advise", "oom"): lambda *words: only(advise(words)).options.log or FAULT,
            ("estimate", "config"): lambda *words: only(estimate(words)).configs[0] or FAULT,
        },
    }


COMMANDS = [(kind, command, key) for kind, found in readers("").items() for command, key in found]

SMALLEST = {"beta": 0, "timeout_s": 0, "gpu_memory_gib": 1}


SPELLINGS = {
    "key=value": lambda key, text: [f"{key}={text}"],
    "--key=value": lambda key, text: [f"--{key}={text}"],
    "--key value": lambda key, text: [f"--{key}", text],
}


SPELLED = [(*found, spelling) for found in COMMANDS for spelling in SPELLINGS]


@pytest.mark.parametrize(("kind", "command", "key", "spelling"), SPELLED)
def test_a_text_has_one_meaning_in_all_commands(kind, command, key, spelling, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    read = readers(str(script))[kind][command, key]
    wrong = {}
    for text, values in TEXTS.items():
        expected = values[kind]
        if expected != FAULT and isinstance(expected, float) and expected < SMALLEST.get(key, 0):
            expected = FAULT
        try:
            found = read(*SPELLINGS[spelling](key, text))
        except UsageError:
            found = FAULT
        if repr(found) != repr(expected):
            wrong[text] = found
    assert not wrong


@pytest.mark.parametrize(
    ("words", "pairs"),
    [
        ("--num-generations 8", "num_generations=8"),
        ("--fail-if=tight", "fail_if=tight"),
        ("--beta -1", "beta=-1"),
        ("--beta -.5", "beta=-.5"),
        ("--config=a=b", "config=a=b"),
        ("--config runs/a=b", "config=runs/a=b"),
        ("--trainer.n_gpus_per_node 4", "trainer.n_gpus_per_node=4"),
        ("--a 1 --b 2 c d=3", "a=1 b=2 c d=3"),
        ("--strict", "--strict"),
        ("--strict --seed 1", "--strict seed=1"),
        ("--strict seed=1", "--strict seed=1"),
        ("--strict -h", "--strict -h"),
        ("--strict --help", "--strict --help"),
        ("--help me", "--help me"),
        ("--help=x", "--help=x"),
        ("--strict -x", "--strict -x"),
        ("--strict --", "--strict --"),
        ("-x 1 --- 2 --=3 -a=4 --1 2", "-x 1 --- 2 --=3 -a=4 --1 2"),
    ],
)
def test_options_by_hand(words, pairs):
    assert as_pairs(words.split()) == tuple(pairs.split())
    assert as_pairs(pairs.split()) == tuple(pairs.split())


def test_an_option_without_a_value_takes_no_word_that_is_not_its_own(tmp_path):
    for command in (estimate, advise):
        found = command(["--model", "format=json", "tiny"])
        assert [(fault.key, fault.found) for fault in found.faults] == [("argument", "--model"), ("argument", "tiny")]


@pytest.mark.parametrize("command", [["true", "--format", "json"], ["true", "format=json", "-h"]])
def test_words_of_a_watched_command_stay_as_they_stand(command):
    assert list(monitor(["--results-dir", "x", *command]).words) == command
    assert list(monitor(["--results-dir", "x", "--", *command]).words) == command


def test_flags_of_hydra_stay_and_slots_get_no_key_of_the_comparison():
    command = sweep(["--config-dir", "grids", "--cfg", "job", "--grid", "logprobs", "--jobs", "2", "--seed=1,2"])
    assert (command.config_dir, command.show_flags, command.grids) == ("grids", ("--cfg", "job"), ("logprobs",))
    assert (command.settings, command.axes["seed"], command.faults) == (("jobs=2",), (1, 2), ())
    assert pairs_of(["--max-increase", "2%"]) == ("max_increase=2%",)


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("run", "monitor")])
@pytest.mark.parametrize("flag", HELP_FLAGS)
def test_help_is_shown_after_options(name, flag, capsys):
    main = import_module(f"profiler.{name}.main").main
    assert main([flag]) == EXIT_OK
    text = capsys.readouterr().out
    for words in (["--gpu", "l4", flag], [flag, "--gpu=l4"]):
        assert main(words) == EXIT_OK
        assert capsys.readouterr().out == text


def test_null_leaves_a_key_to_its_default_in_all_commands(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    for text in ("null", "NULL", "Null"):
        assert of_run(str(script))(f"steps={text}") is None
        assert option(f"jobs={text}") is None
        assert of_sweep(f"steps_per_generation={text}") == of_rest(estimate)(f"steps_per_generation={text}")
        assert estimate([f"prices={text}"]).options.prices is None
        assert option(f"prices={text}") is None


@pytest.mark.parametrize("text", ["format=json", "format='json'", "format= json"])
def test_a_word_of_a_list_may_be_quoted(text):
    for command in (
        estimate([text]),
        advise([text]),
        replay(["x", text]),
        no_claims([text]),
        solve(["gpu", text]).rest,
    ):
        assert not [fault for fault in command.faults if fault.key == "format"]
        assert command.options.output_format == "json"
    assert monitor([text]).options.output_format == "json"


@pytest.mark.parametrize("text", ["1:30", "0400", "010", "0x10", "1m30"])
def test_a_duration_has_a_unit_or_is_a_decimal_number(text):
    with pytest.raises(UsageError, match=r"must be from 10ms to 3600s"):
        monitor([f"watch={text}"])


@pytest.mark.parametrize(("text", "value"), [("2%", 0.02), ("0.02", 0.02), ("2e-2", 0.02), (".02", 0.02)])
def test_a_ratio_is_a_number_or_a_percentage_in_all_commands(text, value):
    assert only(solve(["gpu", f"margin={text}"])).options.margin == value
    assert only(advise([f"margin={text}"])).options.margin == value
    assert only(report(["x", f"max_increase={text}"])).options.max_increase == value
    assert sweep([f"max_increase={text}"]).max_increase == value


@pytest.mark.parametrize("text", ["1:30", "0400", "nan", "٣", "2%%", "", "true", "[1]"])
def test_what_is_no_ratio_is_a_fault_in_all_commands(text):
    for command in (
        solve(["gpu", f"margin={text}"]),
        advise([f"margin={text}"]),
        report(["x", f"max_increase={text}"]),
    ):
        assert [fault.key for fault in command.faults] in (["margin"], ["max_increase"])
    assert sweep([f"max_increase={text}"]).faults[0].key == "max_increase"


def test_an_override_of_verl_is_read_as_verl_reads_it():
    words = ["data.train_batch_size=0400", "trainer.n_gpus_per_node=1_0", "critic.strategy=on", "data.x=1:30"]
    assert list(override_source(words).values.values()) == ["0400", 10, "on", "1:30"]


def test_every_command_takes_part():
    """A new command has a row above, or takes no value of these types."""
    assert set(ALL) <= {command for _, command, _ in COMMANDS}
