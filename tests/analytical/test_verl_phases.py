"""A job of verl by the phases, categories and verdicts of any trial: nothing is lost, and each number has its words."""

from collections import Counter
from functools import cache
from itertools import product

import pytest
from estimate_sample import architecture_of, verl_jobs

from profiler.analytical.explanation.boundary import verl_card, verl_phases
from profiler.analytical.explanation.explained import Fit
from profiler.analytical.formulas.sizes.quantities import LONGEST
from profiler.analytical.formulas.sizes.rounding import with_fragments
from profiler.analytical.timeline.recipes.verl import Component, VerlPhase, verl_estimate
from profiler.domain.cards.card import outside_torch_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase

CATEGORIES = {
    Component.ACTOR: Category.WEIGHTS,
    Component.ACTOR_GRADIENTS: Category.GRADIENTS,
    Component.ACTOR_STATE: Category.OPTIMIZER_STATE,
    Component.REFERENCE: Category.REFERENCE,
    Component.CRITIC: Category.CRITIC,
    Component.CRITIC_GRADIENTS: Category.GRADIENTS,
    Component.CRITIC_STATE: Category.OPTIMIZER_STATE,
    Component.GATHERED: Category.COMMUNICATION,
    Component.ACTIVATIONS: Category.ACTIVATIONS,
    Component.LOGITS: Category.LOGITS,
    Component.CUBLAS: Category.WORKSPACE,
    Component.STEP: Category.WORKSPACE,
    Component.POOL: Category.ENGINE,
}
PHASES = {
    Phase.ROLLOUT: (VerlPhase.ROLLOUT,),
    Phase.SCORE: (VerlPhase.LOG_PROB, VerlPhase.REFERENCE),
    Phase.CRITIC: (VerlPhase.UPDATE_CRITIC, VerlPhase.STEP_CRITIC),
    Phase.BACKWARD: (VerlPhase.UPDATE_ACTOR,),
    Phase.OPTIMIZER: (VerlPhase.STEP_ACTOR,),
}


@cache
def estimates():
    return [verl_estimate(job, architecture_of(job.model), KNOWN_GPUS[gpu]) for gpu, job in verl_jobs()]


def test_every_component_is_in_its_category():
    for found in estimates():
        for phase, parts in found.phases.items():
            sizes = Counter()
            for component, size in parts.items():
                sizes[CATEGORIES[component]] += size
            assert sizes == {category: size for category, size in found.instants[phase].sizes.items() if size}


@pytest.mark.parametrize(("gpu", "size"), [("h100-80gb", 2 * 33_554_432), ("a100-80gb", 2 * 8_519_680)])
def test_workspaces_of_two_threads_are_in_every_phase(gpu, size):
    for _, job in verl_jobs():
        found = verl_estimate(job, architecture_of(job.model), KNOWN_GPUS[gpu])
        assert {parts[Component.CUBLAS] for parts in found.phases.values()} == {size}


def test_a_phase_is_the_largest_of_those_of_verl():
    for found in estimates():
        sums = {phase: sum(parts.values()) for phase, parts in found.phases.items()}
        expected = {
            phase: max(sums[each] for each in of_verl if each in sums)
            for phase, of_verl in PHASES.items()
            if any(each in sums for each in of_verl)
        }
        shown = verl_phases(found)
        assert [(each.phase, each.peak_allocated_bytes) for each in shown] == list(expected.items())
        assert max(expected.values()) == found.peak_bytes == verl_card(found).peak_allocated_bytes


def test_every_number_has_words_that_fit_a_line():
    for found in estimates():
        forms = [share.short_form for phase in verl_phases(found) for share in phase.shares]
        assert all(0 < len(form) <= LONGEST for form in forms), forms


def test_fragments_are_counted_in_training_and_not_in_the_pool():
    seen = Counter()
    for gpu, (_, job) in product(KNOWN_GPUS.values(), verl_jobs()):
        found = verl_estimate(job, architecture_of(job.model), gpu)
        available = gpu.memory_bytes - outside_torch_bytes(gpu.compute_capability, job.n_gpus)
        training = with_fragments(found.training_peak_bytes)
        needed = max(sum(found.phases[VerlPhase.ROLLOUT].values()), training)
        expected = Fit.TOO_LARGE if found.peak_bytes > available else Fit.FITS if training <= available else Fit.TIGHT
        card = verl_card(found)
        if found.engine_weights_bytes >= found.phases[VerlPhase.ROLLOUT][Component.POOL]:
            expected = Fit.NO_ENGINE
        assert (card.fit, card.needed_bytes - card.outside_bytes) == (expected, needed)
        assert card.fit is Fit.NO_ENGINE or (card.left_bytes >= 0) == (card.fit is Fit.FITS)
        seen[card.fit] += 1
    assert set(seen) == {Fit.FITS, Fit.TIGHT, Fit.TOO_LARGE, Fit.NO_ENGINE}
