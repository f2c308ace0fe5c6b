"""The table of constraints: every row is broken by something, and every command answers as the table says."""

from collections import defaultdict
from collections.abc import Mapping
from functools import cache

import pytest
from constraint_walk import CONFIGS, cases, said

from profiler.advise.main import main as advise
from profiler.constraints.constraint import Constraint
from profiler.constraints.table import CONSTRAINTS
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.domain.trials.recipe import GENERATING, Recipe
from profiler.domain.trials.trial import SPEC_KEYS, Backend
from profiler.estimate.main import main as estimate
from profiler.solve.main import main as solve
from profiler.storage.foreign.model_config import load_model_config


def _config(model: str) -> Mapping[str, object]:
    return CONFIGS[model] if model in CONFIGS else load_model_config(model)


@cache
def _witnesses() -> dict[int, Mapping[str, object]]:
    """Return the first combination that breaks each row of the table, by the place of the row."""
    found: dict[int, Mapping[str, object]] = {}
    fault = Constraint.fault

    def noted(constraint, case):
        row = next(place for place, each in enumerate(CONSTRAINTS) if each is constraint)
        found.setdefault(row, values)
        return fault(constraint, case)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Constraint, "fault", noted)
        for values in cases():
            said(values)
            if len(found) == len(CONSTRAINTS):
                break
    return found


def test_every_row_is_broken_by_a_combination_of_the_walk():
    missing = [constraint for row, constraint in enumerate(CONSTRAINTS) if row not in _witnesses()]
    assert missing == [], "a row that nothing breaks is no constraint"


def test_the_rows_read_keys_that_there_are_and_no_two_are_equal():
    assert all(set(each.values) <= set(SPEC_KEYS) for each in CONSTRAINTS)
    by_sentence = defaultdict(list)
    for each in CONSTRAINTS:
        by_sentence[each.where, next(iter(each.values)), each.problem].append(each)
    for where, key, problem in (each for each, rows in by_sentence.items() if len(rows) > 1):
        rows = by_sentence[where, key, problem]
        assert len({str(row.hint) + str(set(row.values)) for row in rows}) == len(rows), (key, problem)


def _words(values):
    return [f"{key}={_word(value)}" for key, value in values.items()]


def _word(value):
    return (
        f"[{','.join(value)}]" if isinstance(value, list) else str(value).lower() if value in (True, False) else value
    )


@pytest.mark.parametrize("row", range(2, len(CONSTRAINTS), 5))
def test_estimate_solve_and_advise_answer_as_the_table_says(row, capsys):
    """Every fifth row: each takes three commands."""
    values = {**_witnesses()[row], "backend": str(Backend.SIMULATED)}
    by_whom = said(values)
    refused = (*by_whom.get("trial", ()), *by_whom.get("estimate", ()))
    searched = "max_completion_length" if Recipe(values["recipe"]) in GENERATING else "max_length"
    others = _words({key: value for key, value in values.items() if key != searched})
    for command, words in (
        (estimate, _words(values)),
        (solve, [searched, *others, "confirm=false"]),
        (advise, _words(values)),
    ):
        code, said_of_it = command(words, load_model=_config), capsys.readouterr().err
        # A search leaves out the value of what it searches.
        faults = [fault for fault in refused if command is not solve or fault.key != searched]
        assert code == (EXIT_USAGE if faults else EXIT_OK), (command, values, said_of_it)
        assert all(f"{fault.key}=" in said_of_it for fault in faults)


@pytest.mark.parametrize("backend", ["cuda", "cpu"])
def test_solve_and_advise_refuse_a_trial_without_a_card_and_estimate_does_not(backend, capsys):
    words = ["model=tiny", f"backend={backend}"]
    assert estimate(words) == EXIT_OK
    for command, given in ((solve, ["max_completion_length", *words]), (advise, words)):
        assert command(given) == EXIT_USAGE
        assert "card" in capsys.readouterr().err
    assert solve(["gpu", *words]) == EXIT_OK
    assert advise([*words, "gpu=h100-80gb"]) == (EXIT_OK if backend == "cuda" else EXIT_USAGE)


def test_a_hint_to_a_sweep_is_given_where_a_sweep_runs_it():
    """Without "with other values of", the sweep that the hint names accepts the trial."""
    for number, values in enumerate(cases()):
        if number % 7:
            continue
        for fault in said(values).get("estimate", ()):
            for text, backend in (
                ("profiler.sweep` simulates it.", "simulated"),
                ("backend=emulated runs it.", "emulated"),
            ):
                if fault.hint.endswith(text) and fault.key != "model":
                    # A trial on the CPU has no card, whatever `gpu` says, and the hint is about that trial.
                    without = {"gpu"} if values.get("backend") == Backend.CPU else set()
                    there = {key: value for key, value in values.items() if key not in without}
                    assert "sweep" not in said({**there, "backend": backend}), fault.sentence()
