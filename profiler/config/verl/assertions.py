"""What verl and its rollout engines refuse: assertions about a configuration, and lengths that no row can have.

Source: verl b178a3c (0.8.0.dev): `validate_config` in `utils/config.py`, `ActorConfig` and `CriticConfig` in
`workers/config`, "normalize config" in `workers/fsdp_workers.py`, `rearrange_micro_batches` in
`utils/seqlen_balancing.py`, `apply_monkey_patch` in `models/transformers/monkey_patch.py`, the server of
`workers/rollout/vllm_rollout`; all of them also in verl 0.7 and 0.9. What 0.9.1 asserts in addition is in its
`ActorRolloutRefWorker.init_model`, `TrainingWorker.train_mini_batch`, `RolloutConfig`, `vLLMHttpServer` and
`collect_lora_params`. Heads by tensor parallel size: vLLM 0.11, `ModelConfig.verify_with_parallel_config`, and
Megatron-Core's `TransformerConfig` (0.13, `__post_init__`), which also asserts how layers are computed again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from profiler.config.options.reading import show
from profiler.config.verl.config import VerlReading, sharing_gpus
from profiler.config.verl.keys import BLOCK, RECOMPUTE, ROLLOUT_NAME
from profiler.config.verl.workers import VerlReader
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.verl import ROLLOUT_ENGINES, VLLM, Strategy, VerlJob

_MODEL, _ACTOR, _REF, _ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "ref", "rollout"))

_CONTEXT = f"{_MODEL}.override_config.max_position_embeddings"

_UNEVEN_STAGES = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
)
"""Settings of Megatron with which stages differ in their layers."""

_COUNTED_AS_LAYERS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
"""Settings of Megatron that count embedding and loss as a layer each."""


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """A job, as the assertions see it."""

    job: VerlJob
    values: VerlReader
    model: Architecture

    @property
    def row(self) -> int:
        return self.job.max_prompt_length + self.job.max_response_length

    @property
    def is_megatron(self) -> bool:
        return self.job.strategy is Strategy.MEGATRON

    def number(self, key: str) -> int | None:
        """Return a whole number; None where the key has none."""
        value = self.values.value(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def is_on(self, key: str) -> bool:
        return self.values.value(key) is True

    @property
    def is_dynamic(self) -> bool:
        return self.is_on(f"{_ACTOR}.use_dynamic_bsz")

    def shared(self, worker: str) -> int:
        """Return the GPUs that share the rows of a batch of `worker`: Ulysses, or Megatron's context parallel size."""
        if self.values.is_later:
            return sharing_gpus(self.values, worker)
        if self.is_megatron:
            return self.number(f"{_ACTOR}.megatron.context_parallel_size") or 1
        engines = ("critic.fsdp",) if worker == "critic" else (f"{worker}.fsdp_config", f"{_ACTOR}.fsdp_config")
        later = (self.number(f"{engine}.ulysses_sequence_parallel_size") or 1 for engine in engines)
        return max(sharing_gpus(self.values, worker), *later)

    def groups(self, worker: str) -> int:
        """Return the number of groups of GPUs that each get rows of their own."""
        parallel = (
            self.job.tensor_model_parallel_size * self.job.pipeline_model_parallel_size if self.is_megatron else 1
        )
        return max(1, self.job.n_gpus // (parallel * self.shared(worker)))

    @property
    def trained(self) -> tuple[str, ...]:
        return (_ACTOR, "critic") if self.job.critic is not None else (_ACTOR,)

    def mini_batch(self, worker: str) -> int:
        own = self.number(f"{worker}.ppo_mini_batch_size")
        return own or self.number(f"{_ACTOR}.ppo_mini_batch_size") or 1


def refusals(reading: VerlReading, architecture: Architecture) -> tuple[str, ...]:
    """Return why verl does not run a job as it is described, one sentence each without its full stop; none if it does.

    Args:
        reading: The job, with the keys of its configuration.
        architecture: Its model.
    """
    subject = _Subject(job=reading.job, values=reading.values, model=architecture)
    return tuple(dict.fromkeys(sentence for check in _CHECKS for sentence in check(subject)))


def ended_rows(reading: VerlReading) -> tuple[str, ...]:
    """Return what is not counted of rows that the rollout engine ends within the longest prompt: it takes shorter ones.

    Source: `generate` in `vllm_async_server.py` of verl 0.9.1, which refuses a prompt, and no job.
    """
    key, longest = f"{_ROLLOUT}.max_model_len", reading.job.max_prompt_length
    length = reading.values.value(key)
    if not isinstance(length, int) or isinstance(length, bool) or longest < length:
        return ()
    return (f"rows that end at {key}={length}, within data.max_prompt_length={longest}",)


def _long_rows(subject: _Subject) -> Iterator[str]:
    """A row fits into the budget of a dynamic batch."""
    for worker, key, is_dynamic in _budgets(subject):
        budget = subject.number(key)
        shared = subject.shared(worker)
        if is_dynamic and budget is not None and budget * shared < subject.row:
            times = f" on each of {shared} GPUs" if shared > 1 else ""
            yield (
                f"a row of {subject.row:,} tokens (data.max_prompt_length + data.max_response_length) does not fit "
                f"into {key}={budget}{times}; at least {-(-subject.row // shared)} is needed"
            )


def _budgets(subject: _Subject) -> Iterator[tuple[str, str, bool]]:
    """Return the worker, the key of the budget and whether batches are dynamic, for each pass over rows."""
    actor = f"{_ACTOR}.ppo_max_token_len_per_gpu"
    yield _ACTOR, actor, subject.is_dynamic
    for worker in (_ROLLOUT, _REF) if subject.job.has_reference else (_ROLLOUT,):
        own = f"{worker}.log_prob_max_token_len_per_gpu"
        stated = subject.values.value(f"{worker}.log_prob_use_dynamic_bsz")
        key = own if subject.values.value(own) is not None else actor
        yield worker, key, subject.is_dynamic if stated is None else stated is True
    if subject.job.critic is not None:
        stated = subject.values.value("critic.use_dynamic_bsz")
        is_dynamic = subject.is_dynamic if stated is None else stated is True
        yield "critic", "critic.ppo_max_token_len_per_gpu", is_dynamic


def _context(subject: _Subject) -> Iterator[str]:
    """Rows end at the model's context, to which the rollout engine is set."""
    context = subject.number(_CONTEXT) or subject.model.max_position_embeddings
    length = subject.number(f"{_ROLLOUT}.max_model_len")
    if length is not None and length > context:
        yield f"{_ROLLOUT}.max_model_len={length} is more than the model's context of {context:,} tokens"
    limit = min(context, length or context)
    if subject.row <= limit:
        return
    cause = f"{_ROLLOUT}.max_model_len={length}" if length == limit else f"the model's context, {context:,} tokens"
    lifted = f"set +{_CONTEXT}={subject.row}, if its RoPE is scaled" if length != limit else "raise it"
    if subject.job.max_prompt_length >= limit:
        if length != limit:
            yield f"data.max_prompt_length={subject.job.max_prompt_length} leaves nothing to generate within {cause}"
        return
    yield (
        f"no row has {subject.row:,} tokens, because verl ends rows at {cause} (up to 0.6, vLLM does not start); "
        f"set data.max_response_length to at most {limit - subject.job.max_prompt_length}, or {lifted}"
    )


def _whole_batches(subject: _Subject) -> Iterator[str]:
    """Rows of a step are shared out evenly, and a step has at least one mini-batch."""
    if subject.is_dynamic:
        return
    rows, parts = subject.job.train_batch_size * subject.job.rollout_n, subject.job.n_gpus
    if subject.is_megatron:
        parts = subject.groups(_ACTOR) * (subject.number(f"{_ACTOR}.ppo_micro_batch_size_per_gpu") or 1)
    if rows % parts:
        yield f"data.train_batch_size times {_ROLLOUT}.n = {rows} rows must be divisible by {parts}"
    for worker in subject.trained:
        if subject.job.train_batch_size < subject.mini_batch(worker) and not _is_dynamic(subject, worker):
            yield (
                f"data.train_batch_size={subject.job.train_batch_size} is less than "
                f"{worker}.ppo_mini_batch_size={subject.mini_batch(worker)}"
            )


def _is_dynamic(subject: _Subject, worker: str) -> bool:
    stated = subject.values.value(f"{worker}.use_dynamic_bsz")
    return subject.is_dynamic if stated is None else stated is True


def _mini_batches(subject: _Subject) -> Iterator[str]:
    """A mini-batch has rows for each group of GPUs, in whole micro-batches."""
    for worker in subject.trained:
        groups = subject.groups(worker)
        rows = subject.mini_batch(worker) * subject.job.rollout_n
        each = rows // groups
        if not each:
            yield (
                f"{worker}.ppo_mini_batch_size times {_ROLLOUT}.n = {rows} rows are fewer than {groups} groups of GPUs"
            )
        micro = subject.number(f"{worker}.ppo_micro_batch_size_per_gpu")
        if each and micro and each % micro and not _is_dynamic(subject, worker):
            yield (
                f"the {each} rows per GPU of {worker}.ppo_mini_batch_size={subject.mini_batch(worker)} must be "
                f"divisible by {worker}.ppo_micro_batch_size_per_gpu={micro}"
            )


def _both_micro_batches(subject: _Subject) -> Iterator[str]:
    """A micro-batch is stated per GPU or for all GPUs, and the latter is enough for all."""
    names = [(worker, "ppo_micro_batch_size") for worker in subject.trained]
    scored = (_REF, _ROLLOUT) if subject.job.has_reference else (_ROLLOUT,)
    names += [(worker, "log_prob_micro_batch_size") for worker in scored]
    for worker, name in names:
        of_all, per_gpu = f"{worker}.{name}", f"{worker}.{name}_per_gpu"
        if subject.is_dynamic or subject.values.value(of_all) is None:
            continue
        if subject.values.value(per_gpu) is not None:
            yield f"{of_all} and {per_gpu} are both set, and verl takes one"
        size = subject.number(of_all)
        if size is None or name != "ppo_micro_batch_size":
            continue
        if subject.mini_batch(worker) % max(1, size):
            yield f"{worker}.ppo_mini_batch_size={subject.mini_batch(worker)} must be divisible by {of_all}={size}"
        if size * subject.shared(worker) < subject.job.n_gpus and not subject.is_megatron:
            yield f"{of_all}={size} is fewer than one row for each of {subject.job.n_gpus} GPUs"


def _sequence_parallel(subject: _Subject) -> Iterator[str]:
    """Ulysses splits heads, of rows without padding."""
    if subject.is_megatron:
        return
    for worker in subject.trained:
        size = sharing_gpus(subject.values, worker)
        section = subject.values.engine(worker) if subject.values.is_later else worker
        key = f"{section}.ulysses_sequence_parallel_size={size}"
        heads, groups = subject.model.num_attention_heads, subject.model.num_key_value_heads
        if heads % size:
            yield f"{key} must divide the {heads} attention heads"
        elif groups % size and size % groups:
            yield f"{key} and the {groups} key-value heads must divide each other"
        if size > 1 and worker == _ACTOR and not subject.is_on(f"{_MODEL}.use_remove_padding"):
            yield f"{key} needs {_MODEL}.use_remove_padding=true"


def _tensor_parallel(subject: _Subject) -> Iterator[str]:
    """Tensor parallelism splits heads, and Megatron's pipeline whole layers."""
    heads, layers = subject.model.num_attention_heads, subject.model.num_hidden_layers
    if heads % subject.job.rollout_tensor_parallel_size:
        size = subject.job.rollout_tensor_parallel_size
        yield f"{_ROLLOUT}.tensor_model_parallel_size={size} must divide the {heads} attention heads"
    if not subject.is_megatron:
        return
    if heads % subject.job.tensor_model_parallel_size:
        size = subject.job.tensor_model_parallel_size
        yield f"{_ACTOR}.megatron.tensor_model_parallel_size={size} must divide the {heads} attention heads"
    overrides = f"{_ACTOR}.megatron.override_transformer_config"
    is_uneven = any(subject.values.value(f"{overrides}.{name}") is not None for name in _UNEVEN_STAGES)
    layers += sum(subject.is_on(f"{overrides}.{name}") for name in _COUNTED_AS_LAYERS)
    if layers % subject.job.pipeline_model_parallel_size and not is_uneven:
        size = subject.job.pipeline_model_parallel_size
        yield f"{_ACTOR}.megatron.pipeline_model_parallel_size={size} must divide the {layers} layers"


def _recomputation(subject: _Subject) -> Iterator[str]:
    """Megatron-Core computes layers again by a method, and of a number of them that is stated."""
    for worker in subject.trained if subject.is_megatron else ():
        section = f"{worker}.{RECOMPUTE}"
        if subject.values.value(f"{section}_granularity") != "full":
            continue
        if subject.values.value(f"{section}_method") not in ("uniform", BLOCK):
            yield f"{section}_granularity=full needs {section}_method=uniform or {BLOCK}"
        if subject.values.value(f"{section}_num_layers") is None:
            yield f"{section}_granularity=full needs {section}_num_layers"


def _later_batches(subject: _Subject) -> Iterator[str]:
    """0.9.1 sizes the batches of the actor and of its old log-probabilities alike, and by the newer keys."""
    if not subject.values.is_later:
        return
    scored = f"{_ROLLOUT}.log_prob_use_dynamic_bsz"
    stated = subject.values.value(scored)
    if stated is not None and (stated is True) is not subject.is_dynamic:
        yield f"{scored}={show(stated)} and {_ACTOR}.use_dynamic_bsz={show(subject.is_dynamic)} must be equal"
    names = [f"{_ACTOR}.ppo_micro_batch_size", f"{_ROLLOUT}.log_prob_micro_batch_size"]
    for key in () if subject.is_dynamic else names:
        if subject.values.value(key) is not None and subject.values.value(f"{key}_per_gpu") is None:
            yield f"{key} is the older name, and {key}_per_gpu must be set"
    for worker in subject.trained:
        rows, groups = subject.mini_batch(worker) * subject.job.rollout_n, subject.groups(worker)
        if rows % groups:
            yield f"{worker}.ppo_mini_batch_size times {_ROLLOUT}.n = {rows} rows must be divisible by {groups}"


def _later_experts(subject: _Subject) -> Iterator[str]:
    """The engine of 0.9.1 shares experts over all GPUs of a replica, or leaves that to TensorRT-LLM."""
    if not subject.values.is_later or subject.job.engine.key == "trtllm":
        return
    size = subject.number(f"{_ROLLOUT}.expert_parallel_size") or 1
    replica = subject.job.rollout_tensor_parallel_size * (subject.number(f"{_ROLLOUT}.data_parallel_size") or 1)
    if size > 1 and size != replica:
        yield f"{_ROLLOUT}.expert_parallel_size={size} must be the {replica} GPUs of its tensor and data parallelism"
    if (subject.number(f"{_ROLLOUT}.moe_tensor_parallel_size") or 1) > 1:
        yield f"{_ROLLOUT}.moe_tensor_parallel_size is for {ROLLOUT_NAME}=trtllm only"


def _later_chunks(subject: _Subject) -> Iterator[str]:
    """Without chunked prefill the vLLM server of 0.9.1 sets a field that is frozen (`FrozenInstanceError`).

    Seen where `run_qwen3_4b_fsdp.sh` of v0.9.0 ran emulated. vLLM would refuse the job too (`SchedulerConfig`).
    """
    is_whole = subject.values.value(f"{_ROLLOUT}.enable_chunked_prefill") is False
    if not subject.values.is_later or not is_whole or subject.job.engine != VLLM:
        return
    context = subject.number(_CONTEXT) or subject.model.max_position_embeddings
    longest = subject.number(f"{_ROLLOUT}.max_model_len") or context
    key = f"{_ROLLOUT}.max_num_batched_tokens"
    if (batched := subject.number(key)) is not None and batched < longest:
        yield (
            f"{_ROLLOUT}.enable_chunked_prefill=false needs {key}={longest} or more, not {batched} "
            f"(or {_ROLLOUT}.max_model_len={batched} or less): verl 0.9.1 fails where it would raise it itself"
        )


def _later_adapters(subject: _Subject) -> Iterator[str]:
    """Adapters go to the engine layer by layer only if it has loaded the other weights, and from no single GPU.

    With FSDP 1 `layered_summon_lora_params` finds none, and verl gathers all on the host, which torch refuses where
    nothing is sharded (`NotImplementedError`). Seen emulated with verl 0.9.1 and torch 2.11.
    """
    is_merged = subject.is_on(f"{_MODEL}.lora.merge")
    key = f"{_ROLLOUT}.layered_summon"
    if not subject.job.workers.counts_adapters or is_merged or not subject.is_on(key):
        return
    if "dummy" in str(subject.values.value(f"{_ROLLOUT}.load_format")):
        yield f"{key}=true with LoRA needs {_ROLLOUT}.load_format=safetensors"
    if subject.job.n_gpus == 1 and subject.job.strategy is Strategy.FSDP:
        yield f"{key}=true with LoRA needs more than one GPU with FSDP 1; one needs {_ACTOR}.strategy=fsdp2"


def _engine(subject: _Subject) -> Iterator[str]:
    """An engine is registered; a library of `model.external_lib` can register further ones, but not this one."""
    if not subject.job.engine.has_pool:
        names = ", ".join(key for key, engine in ROLLOUT_ENGINES.items() if engine.has_pool)
        yield f"{ROLLOUT_NAME}={subject.job.engine.key} is of verl up to 0.5; later ones have {names}"


_CHECKS: tuple[Callable[[_Subject], Iterator[str]], ...] = (
    _engine,
    _long_rows,
    _context,
    _whole_batches,
    _mini_batches,
    _both_micro_batches,
    _sequence_parallel,
    _tensor_parallel,
    _recomputation,
    _later_batches,
    _later_experts,
    _later_chunks,
    _later_adapters,
)
