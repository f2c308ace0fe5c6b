"""Requests of DeepSpeed's ZeRO, stage 3: by hand, and as recorded histories of emulated trials have them."""

import pytest
from kept_sharded import prepared
from test_zero_replays import EMBEDDING, LORA, OFFLOADED, spec_of

from profiler.analytical.estimate import estimate_with_replay
from profiler.analytical.formulas.models.parameters import parameter_count
from profiler.analytical.formulas.models.trained import trainable_parameter_count
from profiler.analytical.replayed.flat_tensors import Modules
from profiler.analytical.replayed.gathering import Coordinator, Module, Weight
from profiler.analytical.replayed.requests import Requests
from profiler.analytical.replayed.trial import program_of, replayed_counters
from profiler.analytical.timeline.sharding.zero_buckets import BUCKET_BYTES
from profiler.config.models.lookup import builtin_architecture
from profiler.domain.memory import MIB
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Logprobs, OffloadDevice

EVERYTHING = 494_032_768
"""Parameters of Qwen2.5-0.5b."""
LARGE = 10 * MIB


def gathered_spec(**keys):
    return spec_of(**{"zero_stage": 3, **keys})


def row_spec(**keys):
    rows = {"recipe": Recipe.SFT, "max_length": 256, "per_device_train_batch_size": 1, "steps": 2}
    return gathered_spec(num_processes=2, gradient_accumulation_steps=2, **rows | keys)


def models_of(spec):
    """The streams of what is gathered, and the last one, of what is reduced."""
    _, *gathered, reduced = program_of(spec, builtin_architecture(spec.model)).sharing._streams._streams
    return gathered, reduced


def coordinator(*values, gpus=2, is_offloaded=False):
    requests, weights = Requests(), [Weight(size, is_trained=True) for size in values]
    found = Coordinator(requests, weights, gpus=gpus, is_offloaded=is_offloaded)
    return found, requests, [Module([weight]) for weight in weights]


def one_pass(found, modules):
    found.begin()
    for module in modules:
        found.forward(module)


# ---- modules ---------------------------------------------------------------------------------------------------------


def test_a_first_pass_gathers_one_module_at_a_time():
    found, requests, modules = coordinator(LARGE, LARGE, LARGE)
    one_pass(found, modules)
    assert requests._sizes_bytes == [2 * LARGE] * 3
    assert requests.counters("").peak_allocated_bytes == 2 * LARGE


def test_a_second_pass_gathers_ahead_to_one_buffer():
    """By hand: the first weight, and after it a buffer of both others, of which each is copied out."""
    found, requests, modules = coordinator(LARGE, LARGE, LARGE)
    one_pass(found, modules)
    one_pass(found, modules)
    assert requests._sizes_bytes[3:] == [2 * LARGE, 4 * LARGE, 2 * LARGE, 2 * LARGE]
    # The buffer is there until the last of its weights is needed.
    assert requests.counters("").peak_allocated_bytes >= 8 * LARGE


def test_another_module_than_the_next_forgets_the_order():
    found, requests, modules = coordinator(LARGE, LARGE, LARGE)
    one_pass(found, modules)
    one_pass(found, modules[::-1])
    one_pass(found, modules)
    assert requests._sizes_bytes == [2 * LARGE] * 9


def test_no_more_is_gathered_ahead_than_may_be_live():
    """Of five weights of 400 million values three are there, of 10^9 at most: the last of them is gathered whole."""
    size = 400_000_000
    found, requests, modules = coordinator(*[size] * 5)
    one_pass(found, modules)
    found.begin()
    found.fetch(modules[0])
    for module in (Module(), Module()):
        found._gather_ahead(module)
    assert sum(not weight.is_absent for weight in found.weights) == 3
    assert requests.counters("").allocated_bytes == 3 * 2 * size


def test_a_weight_that_is_needed_soon_stays():
    found, _, modules = coordinator(LARGE, 900_000_000)
    one_pass(found, [*modules, modules[0]])
    found.begin()
    found.forward(modules[0])
    assert found.weights[0].is_there


def test_small_weights_stay_once_the_order_is_known():
    found, _, modules = coordinator(100_000, 100_001)
    one_pass(found, modules)
    assert not found.weights[0].is_there
    one_pass(found, modules)
    assert [weight.is_there for weight in found.weights] == [True, False]
    found.reset()
    assert not any(weight.is_there for weight in found.weights)


def test_one_gpu_gathers_nothing_but_what_the_host_has():
    for is_offloaded, made in ((False, []), (True, [2 * LARGE] * 2)):
        found, requests, modules = coordinator(LARGE, LARGE, gpus=1, is_offloaded=is_offloaded)
        one_pass(found, modules)
        assert requests._sizes_bytes == made


def test_the_part_of_this_gpu_comes_from_the_host_first():
    found, requests, modules = coordinator(LARGE, gpus=4, is_offloaded=True)
    one_pass(found, modules)
    assert requests._sizes_bytes == [2 * LARGE, 2 * LARGE // 4]
    assert not requests.counters("").allocated_bytes


def test_what_a_checkpoint_recomputes_stays_for_its_backward():
    """Three trained weights are there at once, the last for its backward, and others saved by the recomputation."""
    found, requests, modules = coordinator(LARGE, LARGE, LARGE)
    layer = Module(inner=modules)
    one_pass(found, [layer])
    assert requests.counters("").peak_allocated_bytes == 2 * LARGE
    found.backward(layer, layer)
    found.end_backward()
    assert requests.counters("").peak_allocated_bytes == 3 * 2 * LARGE
    assert not requests.counters("").allocated_bytes


def test_frozen_weights_that_run_again_go_with_their_layer():
    found, requests, modules = coordinator(LARGE, LARGE)
    for weight in found.weights:
        weight.is_trained = False
    layer = Module(inner=modules)
    one_pass(found, [layer])
    found.run_again(layer)
    assert requests.counters("").allocated_bytes == 2 * 2 * LARGE
    found.backward(layer)
    assert not requests.counters("").allocated_bytes
    assert len(requests._sizes_bytes) == 4


@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "llama-3.2-3b", "qwen3-1.7b", "phi-4-mini", "qwen3-30b-a3b"])
@pytest.mark.parametrize("keys", [{}, {**LORA, "lora_target_modules": ("q_proj", "o_proj", "qkv_proj")}])
def test_modules_have_all_weights(model, keys):
    architecture, spec = builtin_architecture(model), gathered_spec(model=model, **keys)
    weights = Modules(spec, architecture).weights
    trained = trainable_parameter_count(spec, architecture)
    assert sum(weight.values for weight in weights if weight.is_trained) == trained
    assert sum(weight.values for weight in weights) == parameter_count(architecture) + (trained if keys else 0)


# ---- a trial ---------------------------------------------------------------------------------------------------------


def test_shards_and_their_copies_by_hand():
    """A quarter of the parameters, in bfloat16 and float32, the bucket, and the gradients of that part."""
    _, requests = prepared(gathered_spec(beta=0.0))
    assert requests.sizes("flat") == {EVERYTHING // 4 * 2: 1}
    assert requests.sizes(("master", 0)) == {493_961_216: 1}
    assert requests.sizes(("master", 1)) == {71_552: 1}
    assert requests.sizes("bucket") == {BUCKET_BYTES: 1}
    assert requests.sizes("kept gradients") == {EVERYTHING // 4 * 2: 1}
    assert not requests.has(("shard", 0, 0))


def test_frozen_shards_stay_and_those_of_the_host_are_not_there():
    _, requests = prepared(gathered_spec(**LORA))
    assert requests.sizes(("shard", 0, 0)) == {EMBEDDING // 4 * 2: 1}
    _, requests = prepared(gathered_spec(**OFFLOADED, offload_param_device=OffloadDevice.CPU))
    assert not any(requests.has(name) for name in ("flat", "kept gradients", ("master", 0), ("shard", 0, 0)))


def test_all_gradients_are_reduced_next_to_a_copy():
    """As a recorded history has it: 988,065,536 B on a stream of their own, where the GPU has its part for the host."""
    _, reduced = models_of(row_spec())
    assert set(reduced._sizes_bytes) == {2 * EVERYTHING}
    _, reduced = models_of(row_spec(**OFFLOADED))
    # The embedding's part, its float64 copy for the norm, and its float32 one.
    assert {EMBEDDING // 2 * size for size in (2, 8, 4)} <= set(reduced._sizes_bytes)


@pytest.mark.parametrize(
    ("keys", "requested", "peak"),
    [({}, 1226, 1044), (LORA, 1682, 1053)],
    ids=["full", "LoRA"],
)
def test_gathered_weights_are_those_of_a_recorded_history(keys, requested, peak):
    """SFT of Qwen2.5-0.5b on two GPUs, two steps of two micro-batches: requests from 200 kB on, and MiB at once."""
    (gathered,), _ = models_of(row_spec(**keys))
    assert sum(size >= 200_000 for size in gathered._sizes_bytes) == requested
    assert gathered.counters("").peak_allocated_bytes / MIB == pytest.approx(peak, rel=0.01)


def test_a_reference_is_gathered_on_a_stream_of_its_own():
    for beta, models in ((0.04, 2), (0.0, 1)):
        gathered, _ = models_of(gathered_spec(beta=beta))
        assert len(gathered) == models
        assert all(each.counters("").peak_allocated_bytes >= EMBEDDING * 2 for each in gathered)


def test_a_rollout_has_the_whole_model():
    program = program_of(gathered_spec(beta=0.0), builtin_architecture("qwen2.5-0.5b"))
    sharing, requests = program.sharing, program.requests
    before = requests.counters("").allocated_bytes
    sharing.generate(begins=True)
    # Small weights are there since the last step.
    assert requests.counters("").allocated_bytes - before == pytest.approx(EVERYTHING * 2, rel=0.01)
    sharing.generate(begins=False)
    assert requests.counters("").allocated_bytes <= before


@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize(
    "keys",
    [{}, OFFLOADED, {"beta": 0.0, "gradient_checkpointing": False}, {"logprobs": Logprobs.FULL}],
    ids=["full", "offloaded", "without checkpoints", "all logits"],
)
def test_streams_reserve_what_they_need(gpus, keys):
    spec = gathered_spec(num_processes=gpus, **keys)
    found = replayed_counters(spec, builtin_architecture(spec.model))
    assert found.peak_allocated_bytes <= found.peak_reserved_bytes <= 1.5 * found.peak_allocated_bytes


def test_a_full_card_holds_less_than_all_streams_at_their_peaks():
    spec = gathered_spec()
    shape = builtin_architecture(spec.model)
    found, replayed = estimate_with_replay(spec, shape), replayed_counters(spec, shape)
    assert found.peak_allocated_bytes <= found.peak_unreleasable_bytes < replayed.peak_unreleasable_bytes
    assert found.peak_reserved_bytes == replayed.peak_reserved_bytes
