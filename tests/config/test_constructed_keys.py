"""Keys of trials that do what trl's trainer cannot: rules, labels, order of memory and closed form."""

from dataclasses import replace
from typing import Any

import pytest

from profiler.analysis.verdicts import ClaimVerdict, Finding, Judged
from profiler.analytical.estimate import estimate, has_form, phase_instants
from profiler.analytical.explanation.explained import explain
from profiler.analytical.formulas.models.weights import critic
from profiler.analytical.many import estimate_specs
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.demand import needs_at_most
from profiler.config.trials.identity import labels
from profiler.config.trials.specification import parse_point
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Origin, Phase
from profiler.domain.trials.trial import Dtype, TrialSpec
from profiler.rendering.claims import origin_text
from profiler.rendering.estimate.table import method_text
from profiler.storage.foreign.published import read_published_claims

BY_TOKENS = {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 2084}


def spec_of(**keys: Any) -> TrialSpec:
    point = {"backend": "simulated", "model": "qwen2.5-0.5b", **keys}
    return parse_point(point, architecture_of=architecture_of)


def architecture_of(model: str) -> Any:
    return builtin_architecture(model)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"critic": True, "tuning": "lora"}, "tuning=lora: is not combined with critic=true"),
        ({"critic": True, "activation_offloading": True}, "activation_offloading=true: is not combined with critic"),
        ({"critic": True, "use_liger_kernel": True, "backend": "emulated"}, "use_liger_kernel=true: is not combined"),
        ({"critic": True, "num_processes": 2, "backend": "emulated"}, "num_processes=2: is not combined with critic"),
        ({"critic": True, "recipe": "sft"}, "has no meaning with recipe=sft"),
        ({**BY_TOKENS, "logprobs": "minibatch"}, "logprobs=minibatch: is not combined with use_dynamic_bsz=true"),
        ({**BY_TOKENS, "steps_per_generation": 6}, "Use a multiple of 4"),
        ({**BY_TOKENS, "ppo_max_token_len_per_gpu": 1041}, "Use at least ppo_max_token_len_per_gpu=1042"),
        ({"use_dynamic_bsz": True, "recipe": "rloo"}, "has no meaning with recipe=rloo"),
    ],
)
def test_what_is_not_constructed_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        spec_of(**keys)
    assert says in " ".join(fault.sentence() for fault in refusal.value.faults)


def test_the_limit_of_tokens_is_verls_and_has_no_meaning_without_them() -> None:
    assert spec_of(use_dynamic_bsz=True).ppo_max_token_len_per_gpu == 16384
    assert spec_of(ppo_max_token_len_per_gpu=5000) == spec_of()


def test_labels_say_that_a_trial_is_constructed() -> None:
    more = spec_of(use_dynamic_bsz=True, ppo_max_token_len_per_gpu=4096)
    found = labels([spec_of(), spec_of(critic=True), spec_of(**BY_TOKENS), spec_of(critic=True, **BY_TOKENS), more])
    assert found[0] == "full + checkpointing"
    assert found[1] == "full + checkpointing + critic (constructed)"
    assert found[2] == "full + checkpointing + dynamic batches (constructed), ppo_max_token_len_per_gpu=2084"
    assert found[3].startswith("full + checkpointing + critic (constructed) + dynamic batches (constructed)")


def test_the_title_of_an_estimate_and_the_origin_of_a_claim_say_it_too() -> None:
    assert method_text(spec_of(critic=True)) == "full, adamw_torch_fused, checkpointing, critic (constructed)"
    assert "constructed" not in method_text(spec_of())
    claims = {claim.id: claim for claim in read_published_claims()}
    for name, expected in (
        ("report-ppo-trial", "simulated, constructed"),
        ("report-activation-offload-trl", "simulated"),
    ):
        findings = (Finding(setting=claims[name].settings[0], holds=True, origin=Origin.SIMULATED),)
        assert origin_text(Judged(claim=claims[name], verdict=ClaimVerdict.HOLDS, findings=findings)) == expected


def test_longer_rows_that_are_split_by_tokens_are_not_compared() -> None:
    short, long = (spec_of(**BY_TOKENS, max_completion_length=length) for length in (500, 786))
    assert not needs_at_most(short, long, architecture_of=architecture_of)
    assert needs_at_most(short, short, architecture_of=architecture_of)
    fixed = (replace(each, use_dynamic_bsz=False, ppo_max_token_len_per_gpu=None) for each in (short, long))
    assert needs_at_most(*fixed, architecture_of=architecture_of)


def test_a_critic_by_hand() -> None:
    tied = architecture_of("qwen2.5-0.5b")
    spec = spec_of(critic=True)
    assert critic(spec, tied).size == (494_032_768 + 896 + 1) * 2 + 256
    assert critic(replace(spec, dtype=Dtype.FLOAT32), tied).size == (494_032_768 + 896 + 1) * 4 + 256
    # A model with a matrix of its own for the LM head leaves it out.
    untied = replace(tied, tie_word_embeddings=False)
    assert critic(spec, untied).size == critic(spec, tied).size
    assert critic(spec_of(), tied).size == 0


def test_a_critic_adds_its_weights_and_states_to_every_later_instant() -> None:
    architecture = architecture_of("qwen2.5-0.5b")
    spec = spec_of(critic=True, optim="adamw_torch")
    weights = critic(spec, architecture).size
    states = 2 * (weights - 256)
    more = estimate(spec, architecture).peak_allocated_bytes
    assert more - estimate(replace(spec, critic=False), architecture).peak_allocated_bytes == weights + states
    one_step = phase_instants(replace(spec, steps=1), architecture)
    # Its own state is made by its step, and its backward is over by then.
    assert one_step[Phase.CRITIC].sizes[Category.CRITIC] == weights
    assert one_step[Phase.SCORE].sizes.get(Category.OPTIMIZER_STATE, 0) == 0
    assert one_step[Phase.BACKWARD].sizes[Category.OPTIMIZER_STATE] == states
    phases = [each.phase for each in explain(spec, architecture).phases]
    assert phases == [phase for phase in Phase if phase not in (Phase.EVALUATION, Phase.CHECKPOINT, Phase.SYNC)]


def test_estimates_in_arrays_are_those_of_one_trial() -> None:
    specs = [spec_of(critic=True), spec_of(), spec_of(critic=True, steps=1, gradient_checkpointing=False, beta=0.04)]
    table = estimate_specs(specs, {"qwen2.5-0.5b": architecture_of("qwen2.5-0.5b")})
    for row, spec in enumerate(specs):
        found = estimate(spec, architecture_of(spec.model))
        assert int(table.peak_allocated_bytes[row]) == found.peak_allocated_bytes
        assert int(table.peak_reserved_bytes[row]) == found.peak_reserved_bytes
    assert table.phases[Phase.CRITIC][1] == 0 < table.phases[Phase.CRITIC][0]


@pytest.mark.parametrize(
    "keys",
    [BY_TOKENS, {"critic": True, "logprobs": "sliced"}, {"critic": True, "steps_per_generation": 1}],
)
def test_what_has_no_closed_form_is_refused(keys: dict[str, Any]) -> None:
    spec = spec_of(**keys)
    assert not has_form(spec, architecture_of(spec.model))
    assert has_form(spec_of(critic=True), architecture_of(spec.model))
