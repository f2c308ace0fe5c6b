"""Where the workers of a release of verl find a setting, and what those of 0.9.1 do that those of 0.8 do not.

Source, where no other is named: verl 0.9.1, `workers/engine/fsdp/transformer_impl.py`,
`workers/engine/megatron/transformer_impl.py`, `workers/engine_workers.py`, `workers/config/actor.py` and `critic.py`,
`experimental/reward_loop/reward_loop.py`.
"""

from collections.abc import Mapping

from profiler.config.notes import Note
from profiler.config.options.reading import FieldReader
from profiler.config.verl.keys import (
    ACTOR,
    BLOCK,
    ENGINE,
    MODEL,
    RECOMPUTE,
    REF,
    ROLLOUT,
    VERSIONS,
    keys_of_one_release,
)
from profiler.config.verl.sources import VerlSource
from profiler.domain.verl import EntropySettings, Release, RewardEngine, Strategy, Workers

ULYSSES = "ulysses_sequence_parallel_size"

_MIB = 1 << 20

_REWARD, _LEGACY_REWARD = "reward.reward_model", "reward_model"
"""Sections of the reward model: that of 0.9.1, and the older one, which it still reads and which wins."""


class VerlReader(FieldReader):
    """Reader of a configuration, with the defaults of a release."""

    def __init__(self, values: Mapping[str, object], release: Release) -> None:
        """Read `values`, in which every key has a value or verl's default."""
        super().__init__(values)
        self.release = release

    @property
    def is_later(self) -> bool:
        """Whether the workers are those of 0.9.1."""
        return self.release is not Release.V0_8

    @property
    def is_megatron(self) -> bool:
        """Whether Megatron trains."""
        return self.value(f"{ACTOR}.strategy") == Strategy.MEGATRON.value

    def engine(self, worker: str) -> str:
        """Return the section of the engine of a worker: `actor`, `ref` or `critic`."""
        if self.is_megatron:
            return f"{worker}.megatron"
        if worker != "critic":
            return f"{worker}.fsdp_config"
        return "critic.fsdp" if self.is_later else "critic.model.fsdp_config"


def has_flag(reader: FieldReader, key: str) -> bool:
    """Return whether a key is true; not where it is null."""
    return reader.value(key) is not None and reader.flag(key)


def later_sharing_gpus(reader: VerlReader, worker: str) -> int:
    """Return the GPUs that share rows: of Megatron's context parallelism, of which the actor decides, or Ulysses.

    The older key of an actor or a reference wins if it is above 1; that of a critic is not read.
    """
    if reader.is_megatron:
        return reader.count(f"{ACTOR}.megatron.context_parallel_size")
    if worker == "critic":
        return reader.count(f"critic.fsdp.{ULYSSES}")
    own = REF if worker == REF else ACTOR
    older = next((key for key in (f"{own}.{ULYSSES}", f"{ACTOR}.{ULYSSES}") if reader.value(key) is not None), "")
    if older and reader.count(older) > 1:
        return reader.count(older)
    return reader.count(f"{own}.fsdp_config.{ULYSSES}")


def recomputes(reader: VerlReader, worker: str, model: str) -> bool:
    """Return whether layers are computed again in backward; Megatron reads keys of its own for that, in all releases.

    Of `recompute_method=block`, which computes some layers of each stage again, all are counted as kept.

    Source: `_init_hf_config_and_tf_config` in `workers/megatron_workers.py` of verl 0.8.0.dev (b178a3c), which passes
    `override_transformer_config` to Megatron-Core and never reads `enable_gradient_checkpointing`.
    """
    if not reader.is_megatron:
        return reader.flag(f"{model}.enable_gradient_checkpointing")
    section = f"{worker}.{RECOMPUTE}"
    return reader.value(f"{section}_granularity") == "full" and reader.value(f"{section}_method") != BLOCK


def offloads_activations(reader: VerlReader, model: str) -> bool:
    """Return whether activations wait on the host. Megatron's workers do not read the key, in any release."""
    return reader.flag(f"{model}.enable_activation_offload") and not reader.is_megatron


def later_entropy(reader: VerlReader, *, removes: bool, in_update: bool, in_loss: bool) -> EntropySettings:
    """Return how the actor of 0.9.1 computes entropies: by its engine's settings, which win over those of the actor.

    Where padding is not removed, of all tokens, without torch.compile and chunks.
    """
    return EntropySettings(
        in_update=in_update,
        in_loss=in_loss,
        is_compiled=removes and has_flag(reader, f"{ACTOR}.fsdp_config.use_torch_compile"),
        checkpointing=has_flag(reader, _of_engine(reader, "entropy_checkpointing")),
        chunking=removes and has_flag(reader, _of_engine(reader, "entropy_from_logits_with_chunking")),
        only_responses=False,
    )


def _of_engine(reader: VerlReader, name: str) -> str:
    """Return the key of a setting: that of the actor's engine, unless only the actor's is stated."""
    own = f"{ACTOR}.fsdp_config.{name}"
    return own if reader.value(own) is not None else f"{ACTOR}.{name}"


def workers_of(reader: VerlReader, entropy: EntropySettings, *, removes: bool) -> Workers:
    """Return what the workers of the release do.

    Logits are divided by a temperature out of place, unless it is 1. The cross-entropy writes its gradient over its
    logits where no entropy is computed from them. Without the removal of padding, the padding is cut out of them by a
    copy, whose gradient is brought back into their form by another.
    """
    if not reader.is_later:
        return Workers()
    is_scaled = reader.number(f"{ROLLOUT}.temperature") != 1
    alone = 1 + is_scaled if removes else 3
    is_naive = reader.value(f"{ROLLOUT}.checkpoint_engine.backend") == "naive"
    bucket = reader.count(f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes") if is_naive else 0
    experts = f"{ACTOR}.megatron.expert_tensor_parallel_size"
    adapters = not reader.is_megatron and reader.count(f"{MODEL}.lora_rank", minimum=0) > 0
    return Workers(
        logits_in_update=2 if entropy.in_update else alone,
        logits_in_scoring=1 + is_scaled,
        repacks_logits=not removes,
        entropy_chunk=reader.count(_of_engine(reader, "entropy_from_logits_chunk_size")),
        counts_adapters=adapters,
        sends_adapters=adapters and not has_flag(reader, f"{MODEL}.lora.merge"),
        update_bucket_bytes=bucket * _MIB,
        keeps_reference_root=not adapters and _keeps_root(reader, REF),
        copied_reference_bytes=0 if adapters else _copied_bytes(reader),
        keeps_actor_root=_keeps_root(reader, ACTOR),
        reward=_reward(reader),
        expert_model_parallel_size=reader.count(f"{ACTOR}.megatron.expert_model_parallel_size"),
        expert_tensor_parallel_size=reader.count(
            experts if reader.value(experts) is not None else f"{ACTOR}.megatron.tensor_model_parallel_size"
        ),
    )


def _copied_bytes(reader: VerlReader) -> int:
    """Return the bytes of a weight that FSDP 1 copies to the GPU for a reference, which verl 0.9.1 has on the host."""
    is_wide = reader.value(f"{REF}.fsdp_config.model_dtype") in (None, "fp32", "float32", 32, "32")
    return (4 if is_wide else 2) if reader.value(f"{ACTOR}.strategy") == Strategy.FSDP.value else 0


def _keeps_root(reader: VerlReader, worker: str) -> bool:
    """Return whether what FSDP 1 has gathered outside of layers stays after a pass without gradient.

    FSDP 1 frees it in the next backward only, and verl before that only if `fsdp_size` is stated above 1. FSDP 2 frees
    it with `reshard_after_forward`.

    Source: `_post_forward_reshard` of torch's FSDP, `EngineEvalModeCtx.__exit__` in verl 0.9.1.
    """
    size = reader.value(f"{worker}.fsdp_config.fsdp_size")
    return reader.value(f"{ACTOR}.strategy") == Strategy.FSDP.value and isinstance(size, int) and size <= 1


def _reward(reader: VerlReader) -> RewardEngine | None:
    """Return the engine of a reward model that has no GPUs of its own."""

    def key(name: str) -> str:
        older = f"{_LEGACY_REWARD}.{name}"
        return older if reader.value(older) is not None else f"{_REWARD}.{name}"

    if not has_flag(reader, key("enable")) or has_flag(reader, key("enable_resource_pool")):
        return None
    return RewardEngine(
        gpu_memory_utilization=reader.number(key("rollout.gpu_memory_utilization")),
        free_cache_engine=reader.flag(key("rollout.free_cache_engine")),
    )


def releases_of(source: VerlSource, stated: Release | None) -> tuple[tuple[Release, ...], Note]:
    """Return the releases that a job can be of, first the one whose defaults it takes, and a note that says so.

    It is the stated one, else 0.9.1 if a key is of that alone and none of 0.8 alone, else 0.8. Without a key of one
    release alone, or with keys of both, it can be of both.
    """
    found = keys_of_one_release(source.values, added=source.added)
    later = [*([ENGINE] if source.names_engine else ()), *found[Release.V0_9_1]]
    has_own = {Release.V0_8: bool(found[Release.V0_8]), Release.V0_9_1: bool(later)}
    by_keys = tuple(each for each in Release if has_own[each] or not any(has_own.values()))
    releases = by_keys if stated is None else (stated,)
    release = releases[0]
    text = f"the defaults and workers of verl {VERSIONS[release]}"
    if stated is None:
        other = next(each for each in Release if each is not release)
        why = f"which alone has {later[0]}; " if release is Release.V0_9_1 else ""
        text += f" ({why}verl={other.value} takes those of {VERSIONS[other]})"
        text += "" if any(has_own.values()) else "; those of verl 0.3 to 0.6 differ in part"
    return releases, Note(key="", text=text)
