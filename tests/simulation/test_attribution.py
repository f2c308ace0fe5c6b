"""Module, operation and name of the memory in use at an instant."""

from simulating import LORA, Simulated, simulate

from profiler.allocator.traces.trace import Site
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.trial import Tuning


def blocks(simulated: Simulated, phase: Phase) -> dict[int, Site]:
    """Sites of the blocks made in one phase."""
    found: dict[int, Site] = {}
    current = Phase.LOAD
    starts = dict(simulated.trace.phase_starts)
    for index, event in enumerate(simulated.trace.events):
        current = starts.get(index, current)
        if event > 0 and current is phase:
            found[event - 1] = simulated.trace.sites[simulated.trace.site_of[event - 1]]
    return found


def test_forward_memory_names_its_module_and_operation() -> None:
    sites = set(blocks(simulate(gradient_checkpointing=False), Phase.FORWARD).values())
    mlp = {site.operation for site in sites if site.module == "model.layers.1.mlp.gate_proj"}
    assert "aten.mm" in mlp
    assert all(site.dtype for site in sites if site.shape)


def test_backward_memory_names_the_module_whose_backward_it_is() -> None:
    simulated = simulate(gradient_checkpointing=False)
    sites = blocks(simulated, Phase.BACKWARD)
    shapes = {(site.module, site.shape) for site in sites.values()}
    # The gradient of each projection is made in the backward of that projection.
    for layer in range(2):
        assert (f"model.layers.{layer}.mlp.up_proj", (160, 64)) in shapes
        assert (f"model.layers.{layer}.self_attn.k_proj", (32, 64)) in shapes


def test_recomputation_in_backward_names_the_module_that_runs_again() -> None:
    sites = blocks(simulate(gradient_checkpointing=True), Phase.BACKWARD).values()
    assert any(site.module == "model.layers.0.mlp.act_fn" and site.operation == "aten.silu" for site in sites)


def test_parameters_gradients_and_states_have_names() -> None:
    simulated = simulate()
    names = simulated.trace.names
    by_category = {
        category: {names.get(block, "") for block, found in enumerate(simulated.trace.categories) if found is category}
        for category in (Category.WEIGHTS, Category.OPTIMIZER_STATE, Category.GRADIENTS)
    }
    assert "model.layers.0.self_attn.q_proj.weight" in by_category[Category.WEIGHTS]
    assert "exp_avg_sq of model.layers.1.mlp.down_proj.weight" in by_category[Category.OPTIMIZER_STATE]
    assert "gradient of model.embed_tokens.weight" in by_category[Category.GRADIENTS]
    assert "" not in by_category[Category.WEIGHTS]


def test_the_fused_head_makes_the_float32_gradient_of_the_head() -> None:
    simulated = simulate()
    made = blocks(simulated, Phase.BACKWARD)
    buffers = [block for block, site in made.items() if site.shape == (512, 64) and site.dtype == "float32"]
    assert buffers
    for block in buffers:
        assert simulated.trace.categories[block] is Category.GRADIENTS
        assert made[block].operation == "trl's fused LM head"
        assert simulated.trace.names[block] == "gradient of model.embed_tokens.weight"


def test_adapters_are_named_without_pefts_wrapper() -> None:
    simulated = simulate(tuning=Tuning.LORA, **LORA)
    adapters = {
        simulated.trace.names[block]
        for block, category in enumerate(simulated.trace.categories)
        if category is Category.ADAPTERS
    }
    assert "model.layers.0.self_attn.q_proj.lora_A.default.weight" in adapters
    assert len(adapters) == 2 * 7 * 2


def test_a_reference_model_has_its_own_prefix() -> None:
    sites = blocks(simulate(beta=0.04), Phase.SCORE).values()
    assert any(site.module.startswith("reference: model.layers.0.") for site in sites)
