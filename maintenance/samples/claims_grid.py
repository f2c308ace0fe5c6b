"""The grid of the trials that the claims of public texts need, generated from the list of claims."""

from collections.abc import Iterable

from profiler.config.claims.settings import keys_text, spec_of
from profiler.domain.claims import By, Claim, Configuration
from profiler.domain.trials.trial import TrialSpec

_HEAD = """\
# @package _global_
# Generated from profiler/published/claims.yaml by `python tests/published/test_claims_grid.py`; do not edit.
# `python -m profiler.claims` judges the claims by these trials.
question: Which claims of five public texts about the memory of GRPO hold?

cases:
"""


def claims_grid(claims: Iterable[Claim]) -> str:
    """Return the text of `sweeps/grid/claims.yaml`: each trial of the claims once, in their order."""
    found: dict[TrialSpec, Configuration] = {}
    for claim in claims:
        for configuration in claim.configurations:
            if configuration.by is By.TRIAL:
                found.setdefault(spec_of(configuration), configuration)
    return _HEAD + "".join(f"  - {keys_text(configuration)}\n" for configuration in found.values())
