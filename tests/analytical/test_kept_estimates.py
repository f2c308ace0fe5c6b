"""What the closed form says of many trials and jobs is what it said before, to the byte and to the letter.

`kept_estimates.json` has a hash per group, for one of 24 trials. To see what differs, or to compare all trials
(`ESTIMATES_EVERY=1`, some 10 minutes), write the lines of both versions and compare them: with
`ESTIMATES_WRITTEN=FOLDER` this test writes them, here and with another FOLDER in a checkout of the earlier version;
then `diff -r` of both folders. If a change is meant, `ESTIMATES_KEPT=new` writes the hashes again.
"""

import hashlib
import json
import os
from functools import cache
from pathlib import Path

import pytest
from estimate_sample import (
    EVERY,
    KEPT_EVERY,
    array_lines,
    command_lines,
    printed_lines,
    trial_groups,
    trial_lines,
    verl_jobs,
    verl_lines,
)

KEPT = Path(__file__).with_name("kept_estimates.json")
WRITTEN = os.environ.get("ESTIMATES_WRITTEN")


@cache
def _groups():
    return trial_groups()


def _trials():
    return {name: [line for spec in specs for line in trial_lines(spec)] for name, specs in _groups().items()}


def _arrays():
    return {f"{name}, arrays": array_lines(specs) for name, specs in _groups().items()}


def _jobs():
    return {"jobs of verl": [line for gpu, job in verl_jobs() for line in verl_lines(gpu, job)]}


def _printed():
    return {"printed": [line for words in command_lines() for line in printed_lines(words)]}


@pytest.mark.parametrize("source", [_trials, _arrays, _jobs, _printed], ids=["trials", "arrays", "verl", "printed"])
def test_the_closed_form_says_what_it_said(source):
    found = {}
    for name, lines in source().items():
        if not lines:
            continue
        text = "\n".join(lines)
        found[name] = {"lines": len(lines), "sha256": hashlib.sha256(text.encode()).hexdigest()}
        if WRITTEN:
            Path(WRITTEN).mkdir(parents=True, exist_ok=True)
            (Path(WRITTEN) / f"{name}.txt").write_text(text, encoding="utf-8")
    if EVERY != KEPT_EVERY:
        pytest.skip(f"hashes are kept for one of {KEPT_EVERY} trials")
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    if os.environ.get("ESTIMATES_KEPT") == "new":
        kept |= found
        KEPT.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n", encoding="utf-8")
    assert found == {name: kept.get(name) for name in found}


def test_the_sample_is_wide():
    """A sample that shrinks would prove nothing."""
    specs = [spec for name, found in _groups().items() if name.startswith("random") for spec in found]
    kinds = {(spec.distributed_type, spec.zero_stage, spec.tuning, spec.recipe, spec.use_vllm) for spec in specs}
    assert (len(specs) * EVERY, len(kinds)) >= (3_000, 60)
    assert len(command_lines()) * EVERY >= 90
