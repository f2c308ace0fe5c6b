"""The least time of a step, compared with the counted work of the claims' configurations."""

from dataclasses import replace

import pytest
from toy_models import DELTA, WITH_GATE

from maintenance.counted import _kept, counted_configurations
from profiler.analytical.baselines import _forward_flops, least_step_s
from profiler.config.claims.settings import keys_text, spec_of
from profiler.config.models.lookup import builtin_architecture
from profiler.domain.cards.gpu import ROOFLINES
from profiler.domain.trials.trial import Backend, Rollout, TrialSpec
from profiler.storage.foreign.published import read_published_claims

COUNTED = counted_configurations(read_published_claims())


def least(spec, **card):
    return least_step_s(spec, builtin_architecture(spec.model), ROOFLINES["h100-80gb"])


@pytest.mark.parametrize("configuration", COUNTED, ids=range(len(COUNTED)))
def test_it_is_less_than_the_counted_work_and_not_by_much(configuration):
    spec = spec_of(configuration)
    seconds = sum(float(row["seconds"]) for row in _kept() if row["configuration"] == keys_text(configuration))
    share = least_step_s(spec, builtin_architecture(spec.model), ROOFLINES[str(spec.gpu)]) / seconds
    # Offloaded activations wait for the link between host and card, which is left out.
    assert (0.1 if spec.activation_offloading else 0.4) < share < 0.6


def test_each_decoded_token_reads_all_weights():
    synthetic = TrialSpec(backend=Backend.CUDA, gpu=None, model="qwen2.5-7b", rollout=Rollout.SYNTHETIC)
    generated = TrialSpec(backend=Backend.CUDA, gpu=None, model="qwen2.5-7b", rollout=Rollout.GENERATE)
    weights = 7.07e9 * 2  # without the embedding, which is not read whole
    expected = generated.max_completion_length * weights / 3.35e12
    assert least(generated) - least(synthetic) == pytest.approx(expected, rel=0.01)


def test_only_full_attention_grows_with_the_square_of_a_row():
    """By hand, of two layers one has 2 heads of 4 of queries, and of output: 16 x (16^2 - 2 x 8^2)."""
    model = replace(WITH_GATE, first_layers=(replace(DELTA, num_hidden_layers=1),))
    short, long = (_forward_flops(model, rows=1, width=width, scored=0) for width in (8, 16))
    assert long - 2 * short == 16 * (16**2 - 2 * 8**2)
