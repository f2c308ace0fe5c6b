"""Memory does not depend on the values of the weights: random weights need as much as trained ones."""

from measured_on_cpu import MODEL, TRIAL, measure_on_cpu


def test_peaks_of_every_phase_are_the_same_with_other_weights_and_other_samples() -> None:
    one, other = (measure_on_cpu(model_config=MODEL, seed=seed, **TRIAL).stretches for seed in (0, 1))
    assert len(one) > 10
    assert one == other
