"""The largest tensors at an instant, in groups of tensors alike."""

from profiler.allocator.traces.replay import largest_groups
from profiler.allocator.traces.trace import Site, TraceBuilder
from profiler.domain.memory import Category, Phase


def at(builder: TraceBuilder, module: str, operation: str = "aten.mm") -> int:
    return builder.site_index(Site(operation=operation, shape=(4, 8), dtype="bfloat16", module=module))


def test_the_same_place_in_every_layer_is_one_group_and_the_largest_comes_first() -> None:
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    weight = builder.allocate(4096, Category.WEIGHTS, at(builder, "", "aten.empty"))
    builder.names[weight] = "model.layers.0.mlp.weight"
    builder.enter(Phase.FORWARD)
    layers = [
        builder.allocate(2048, Category.ACTIVATIONS, at(builder, f"model.layers.{layer}.mlp")) for layer in range(3)
    ]
    builder.enter(Phase.BACKWARD)
    again = builder.allocate(2048, Category.ACTIVATIONS, at(builder, "model.layers.0.mlp"))
    live = {weight: 4096, again: 2048} | dict.fromkeys(layers, 2048)

    forward, loaded, backward = largest_groups(builder.finished(), live)
    assert (forward.size_bytes, forward.tensors) == (6144, 3)
    assert (forward.module, forward.operation, forward.phase) == ("model.layers.*.mlp", "aten.mm", Phase.FORWARD)
    # A named block is what its name says, whoever made it.
    assert (loaded.name, loaded.module, loaded.operation) == ("model.layers.*.mlp.weight", "", "")
    assert (backward.size_bytes, backward.phase) == (2048, Phase.BACKWARD)


def test_a_gradient_keeps_who_made_it() -> None:
    builder = TraceBuilder()
    builder.enter(Phase.BACKWARD)
    block = builder.allocate(512, Category.GRADIENTS, at(builder, "", "trl's fused LM head"))
    builder.names[block] = "gradient of lm_head.weight"
    (group,) = largest_groups(builder.finished(), {block: 512})
    assert (group.name, group.operation) == ("gradient of lm_head.weight", "trl's fused LM head")


def test_no_more_than_asked_for() -> None:
    builder = TraceBuilder()
    builder.enter(Phase.FORWARD)
    live = {builder.allocate(512, Category.ACTIVATIONS, at(builder, f"m{index}")): 512 for index in range(20)}
    assert len(largest_groups(builder.finished(), live)) == 10
    assert len(largest_groups(builder.finished(), live, most=3)) == 3
