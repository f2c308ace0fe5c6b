"""One trial: a configuration of training that is run once, in a fresh process."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Origin
from profiler.domain.trials.keys import MAX_COUNT, Declaration, Group, Key, MemoryOrder, declared, keys_of
from profiler.domain.trials.optimizers import HINTS, Optimizer
from profiler.domain.trials.recipe import GENERATING, OF_DATA, SCORED, WITH_PROMPTS, WITH_REFERENCE, Recipe


class Backend(StrEnum):
    """Where a trial runs."""

    CUDA = "cuda"
    """A real GPU: GPU memory is measured."""
    EMULATED = "emulated"
    """The same trainer in torch's CUDA build, on an emulated driver that computes nothing."""
    SIMULATED = "simulated"
    """The same trainer on a simulated GPU."""
    CPU = "cpu"
    """Real training on the CPU with a small model, as a check that the job runs; GPU figures are null."""

    @property
    def origin(self) -> Origin | None:
        """Where GPU figures of its trials come from; None if they have none."""
        return _ORIGINS[self]

    @property
    def names_its_card(self) -> bool:
        """Whether `gpu` names the card that the trial runs on, because there is no real one."""
        return self in (Backend.EMULATED, Backend.SIMULATED)

    @property
    def reads_counters(self) -> bool:
        """Whether memory is read from torch's counters, in torch's CUDA build."""
        return self in (Backend.CUDA, Backend.EMULATED)


_ORIGINS = {
    Backend.CUDA: Origin.MEASURED,
    Backend.EMULATED: Origin.EMULATED,
    Backend.SIMULATED: Origin.SIMULATED,
    Backend.CPU: None,
}


class Tuning(StrEnum):
    """What is trained."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"
    """LoRA over weights in 4 bits (nf4, double quantisation)."""


class Lengths(StrEnum):
    """Lengths of the completions of one batch."""

    RAGGED = "ragged"
    """The first row has the maximum length, the others follow the pattern of `completion_lengths`."""
    FORCED = "forced"
    """Every row has the maximum length."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """How a release of trl calls its `selective_log_softmax` with the logits of all completions of a micro-batch."""

    in_place: bool = False
    """Whether logits are divided by the temperature in place; else the quotient is another tensor."""
    entropy_by_row: bool = False
    """Whether the entropy is computed of a whole row at once; else of `ENTROPY_TOKENS` tokens."""
    keeps_outputs: bool = False
    """Whether the logits before the division stay until the end of forward."""
    divides: bool = True
    """Whether logits are divided at all, and the entropy is computed of what is selected."""
    by_kernel: bool = False
    """Whether a kernel reads the logits, makes nothing as wide as they are, and one gradient of them in backward."""

    @property
    def keeps_whole(self) -> bool:
        """Whether backward needs the logits with those of the last token, because there is no quotient of a slice."""
        return self.in_place or not self.divides


ENTROPY_TOKENS = 128
"""Tokens of which trl computes the entropy at once: `chunk_size` of `entropy_from_logits` in `trl/trainer/utils.py`."""


@dataclass(frozen=True, kw_only=True)
class LabelLoss:
    """What a release of trl, or OpenRLHF, does with all logits of a micro-batch of labels, of which it takes the loss.

    The loss is `ForCausalLMLoss` of transformers: a float32 copy of all logits, and their log-softmax.
    """

    keeps_copy: bool = False
    """Whether the loss is flash-attn's, which reads the copy, and the copy stays until the next forward has its own."""
    has_entropy: bool = True
    """Whether the entropy is computed, which is only logged."""
    entropy_by_row: bool = False
    """Whether the entropy is computed of a whole row at once; else of `ENTROPY_TOKENS` tokens."""
    copies_in_entropy: int = 0
    """Copies of the logits without those of the last token while the entropy is computed."""
    copies_in_accuracy: int = 0
    """The same while the accuracy of the tokens is computed."""


@dataclass(frozen=True, kw_only=True)
class PairLoss:
    """What a trainer of preferences does with all logits of a micro-batch, of DPO or of KTO.

    The logits of the policy stay until the loss is computed, so that the reference runs next to them.
    """

    of_prompts: bool = True
    """Whether the logits of all tokens are made; else those of completions and of the token before them."""
    slices: bool = True
    """Whether those of the last token, which predict nothing, are left out by a slice."""
    at_once: bool = False
    """Whether float32 logits of all rows get one log-softmax, next to which they stay; else see `selection`."""
    by_kernel: bool = False
    """Whether a kernel reads a copy of the slice, and all logits stay until they are logged, the reference's too."""
    widens: bool = False
    """Whether flash-attn's loss reads a float32 copy of all logits, which is what stays of them until backward."""
    has_own_reference: bool = False
    """Whether the reference is a model of its own with adapters too, and no trainer of KTO has the loss."""


CHUNK_TOKENS = 256
"""Tokens of a chunk of trl's `chunked_nll`: `_CHUNKED_LM_HEAD_CHUNK_SIZE` in `trl/trainer/sft_trainer.py`."""


@dataclass(frozen=True, kw_only=True)
class ChunkedLoss:
    """How a release of trl computes its loss of labels chunk by chunk, whose logits backward makes again."""

    keeps_padding: bool = True
    """Whether positions without a label are kept, after those with one; else they are dropped."""
    runs_to_the_end: bool = True
    """Whether backward computes a whole chunk again, because autograd saves something in the last line."""
    widens_inputs: bool = True
    """Whether the hidden states and the head are cast to float32 before their product; else its result is."""


class Logprobs(StrEnum):
    """How training computes log-probabilities. Releases of trl are in `profiler.config.trl_releases.behaviours`."""

    FUSED = "fused"
    """trl today: a fused, chunked LM head over the scored positions."""
    FULL = "full"
    """trl 0.14.0: logits of all rows at once, log-softmax row by row (here under autocast)."""
    SLICED = "sliced"
    """The forward in slices of one row, one backward over all."""
    MINIBATCH = "minibatch"
    """Forward and backward row by row."""
    SELECTIVE = "selective"
    """trl 0.23: logits of all rows at once, their quotient by the temperature, log-sum-exp row by row."""
    SELECTIVE_ROW_ENTROPY = "selective_row_entropy"
    """trl 0.20: as `selective`, and the entropy of a row at once."""
    SELECTIVE_IN_PLACE = "selective_in_place"
    """trl 1.0: as `selective`, with logits divided in place of a slice, which backward copies."""
    SELECTIVE_KEPT = "selective_kept"
    """trl 1.10: as `selective`, and the logits before the division stay until the end of forward."""
    SELECTIVE_KERNEL = "selective_kernel"
    """trl 1.14: logits of all rows at once, of which a kernel makes log-probabilities and one gradient."""
    NLL = "nll"
    """SFT of trl 0.14: transformers' loss of the logits of all tokens at once."""
    NLL_ACCURACY = "nll_accuracy"
    """SFT of trl 0.15: as `nll`, and a copy of the logits for the accuracy of the tokens."""
    NLL_ROW_ENTROPY = "nll_row_entropy"
    """SFT of trl 0.22: as `nll_accuracy`, and the entropy of a row at once."""
    NLL_TWO_COPIES = "nll_two_copies"
    """SFT of trl 1.3: as `nll_accuracy`, with a second copy of the logits."""
    NLL_ENTROPY = "nll_entropy"
    """SFT of trl 1.6: as `nll`, and a copy of the logits for the entropy."""
    NLL_KEPT = "nll_kept"
    """SFT of OpenRLHF 0.7 to 0.11: flash-attn's loss of logits in float32, which stay until the next forward."""
    CHUNKED_NLL = "chunked_nll"
    """SFT of trl 1.7: logits of 256 tokens at a time, made again in backward."""
    CHUNKED_NLL_MASKED = "chunked_nll_masked"
    """SFT of trl 1.8: as `chunked_nll`, with an entropy that backward computes again too."""
    CHUNKED_NLL_CAST = "chunked_nll_cast"
    """SFT of trl 1.13: as `chunked_nll_masked`, with logits that are cast to float32, where their factors were."""
    PAIRS_OF_COMPLETIONS = "pairs_of_completions"
    """DPO and KTO of ms-swift 4.6: logits of completions at once, log-sum-exp row by row."""
    PAIRS_OF_ROWS = "pairs_of_rows"
    """Those of axolotl 0.18 and 0.19: logits of all tokens at once, whose log-sum-exp is of a kernel."""
    PAIRS_AT_ONCE = "pairs_at_once"
    """Those of LLaMA-Factory 0.9.5: one log-softmax of all tokens, in float32."""
    PAIRS_WIDENED = "pairs_widened"
    """DPO of OpenRLHF 0.7 to 0.11: flash-attn's loss of the logits of all tokens in float32."""

    @property
    def selection(self) -> Selection | None:
        """How `selective_log_softmax` is called; None where it is not."""
        return _SELECTIONS.get(self)

    @property
    def makes_all_logits(self) -> bool:
        """Whether the logits of all completions, or of all tokens of labelled rows, of a micro-batch exist at once."""
        return self is Logprobs.FULL or any((self.selection, self.label_loss, self.pair_loss))

    @property
    def pair_loss(self) -> PairLoss | None:
        """What is done with the logits of preferences; None if the loss is not one of them, or has a fused head."""
        return _PAIR_LOSSES.get(self)

    @property
    def pairs(self) -> PairLoss:
        """What a loss of preferences does with all logits; of another loss nothing."""
        return self.pair_loss or PairLoss()

    @property
    def ends_autocast(self) -> bool:
        """Whether log-probabilities are of the outputs of the model, in whose forward alone there is autocast.

        Up to 1.14 trl computes those of completions so, and autocast has let go of its copies by then. The trial's
        trainer has `full` under autocast, as kept trials ran it; losses of preferences are counted as if they were.
        """
        return self.selection is not None and self.pair_loss is None

    @property
    def label_loss(self) -> LabelLoss | None:
        """What is done with the logits of labels; None if the loss is not that of labels, or not of all logits."""
        return _LABEL_LOSSES.get(self)

    @property
    def chunked_loss(self) -> ChunkedLoss | None:
        """How the loss of labels is computed chunk by chunk; None where it is not."""
        return _CHUNKED_LOSSES.get(self)

    @property
    def has_fused_head(self) -> bool:
        """Whether trl's fused LM head computes it."""
        return not self.makes_all_logits and self.chunked_loss is None

    @property
    def is_of_labels(self) -> bool:
        """Whether a recipe on rows with labels can have it."""
        return self is Logprobs.FUSED or self.label_loss is not None or self.chunked_loss is not None

    @property
    def is_of_completions(self) -> bool:
        """Whether a recipe that generates completions can have it."""
        return self is Logprobs.FUSED or not (self.is_of_labels or self.is_of_pairs)

    @property
    def is_of_pairs(self) -> bool:
        """Whether a recipe on preferences can have it."""
        return self is Logprobs.FUSED or self.pair_loss is not None

    @property
    def is_of_trl(self) -> bool:
        """Whether a release of trl has it: another program's loss has a closed form alone."""
        return self.pair_loss is None and not self.is_of_openrlhf

    @property
    def is_of_openrlhf(self) -> bool:
        """Whether it is a loss of OpenRLHF, which trains by DeepSpeed only."""
        return self in (Logprobs.NLL_KEPT, Logprobs.PAIRS_WIDENED)

    def is_of(self, recipe: Recipe) -> bool:
        """Return whether the trainer of a recipe can have it."""
        if recipe in GENERATING:
            return self.is_of_completions
        if recipe is Recipe.SFT:
            return self.is_of_labels
        if recipe is Recipe.KTO and self.pair_loss is not None and self.pair_loss.has_own_reference:
            return False
        return self.is_of_pairs if recipe in WITH_PROMPTS else self is Logprobs.FUSED


_SELECTIONS: Mapping[Logprobs, Selection] = {
    Logprobs.SELECTIVE: Selection(),
    Logprobs.SELECTIVE_ROW_ENTROPY: Selection(entropy_by_row=True),
    Logprobs.SELECTIVE_IN_PLACE: Selection(in_place=True),
    Logprobs.SELECTIVE_KEPT: Selection(keeps_outputs=True),
    Logprobs.SELECTIVE_KERNEL: Selection(divides=False, by_kernel=True),
    Logprobs.PAIRS_OF_COMPLETIONS: Selection(divides=False),
}

_PAIR_LOSSES: Mapping[Logprobs, PairLoss] = {
    Logprobs.PAIRS_OF_COMPLETIONS: PairLoss(of_prompts=False, slices=False),
    Logprobs.PAIRS_OF_ROWS: PairLoss(by_kernel=True),
    Logprobs.PAIRS_AT_ONCE: PairLoss(at_once=True),
    Logprobs.PAIRS_WIDENED: PairLoss(slices=False, widens=True, has_own_reference=True),
}

_LABEL_LOSSES: Mapping[Logprobs, LabelLoss] = {
    Logprobs.NLL: LabelLoss(has_entropy=False),
    Logprobs.NLL_ACCURACY: LabelLoss(copies_in_accuracy=1),
    Logprobs.NLL_ROW_ENTROPY: LabelLoss(entropy_by_row=True, copies_in_accuracy=1),
    Logprobs.NLL_TWO_COPIES: LabelLoss(copies_in_entropy=1, copies_in_accuracy=2),
    Logprobs.NLL_ENTROPY: LabelLoss(copies_in_entropy=1),
    Logprobs.NLL_KEPT: LabelLoss(keeps_copy=True, has_entropy=False),
}

_CHUNKED_LOSSES: Mapping[Logprobs, ChunkedLoss] = {
    Logprobs.CHUNKED_NLL: ChunkedLoss(keeps_padding=False, runs_to_the_end=False),
    Logprobs.CHUNKED_NLL_MASKED: ChunkedLoss(),
    Logprobs.CHUNKED_NLL_CAST: ChunkedLoss(widens_inputs=False),
}


class Rollout(StrEnum):
    """How completions are generated."""

    GENERATE = "generate"
    """transformers' `generate`, token by token."""
    SYNTHETIC = "synthetic"
    """Prefill, a KV cache that is filled at once, and the last decoding step at full length."""


class VllmMode(StrEnum):
    """Where vLLM runs, by trl's names."""

    COLOCATE = "colocate"
    """In the process that trains, on its GPU."""
    SERVER = "server"
    """On other GPUs."""


class VllmModelImpl(StrEnum):
    """Whose model vLLM runs, by trl's names."""

    VLLM = "vllm"
    """vLLM's own."""
    TRANSFORMERS = "transformers"
    """That of transformers."""


class DistributedType(StrEnum):
    """How several GPUs train together, by accelerate's names."""

    NO = "no"
    """One GPU."""
    MULTI_GPU = "multi_gpu"
    """Each GPU has a copy of the model (DDP)."""
    FSDP = "fsdp"
    """Weights, gradients and optimizer states are sharded over the GPUs (FSDP)."""
    DEEPSPEED = "deepspeed"
    """What is sharded depends on `zero_stage` (DeepSpeed's ZeRO)."""


SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED)
"""Ways to train in which GPUs have parts of the model."""


ZERO_OF_WEIGHTS = 3
"""The stage of ZeRO that also shards weights, and reward models (`prepare_deepspeed` in trl)."""


class OffloadDevice(StrEnum):
    """Where DeepSpeed keeps what is offloaded, by its names."""

    NONE = "none"
    """On the GPU."""
    CPU = "cpu"
    """In the memory of the host."""


class Weights(StrEnum):
    """Where the values of the weights come from."""

    RANDOM = "random"
    PRETRAINED = "pretrained"


class Dtype(StrEnum):
    """Data type of the weights, by torch's name."""

    BFLOAT16 = "bfloat16"
    """16 bits, with the exponents of float32."""
    FLOAT16 = "float16"
    """16 bits; gradients are scaled."""
    FLOAT32 = "float32"
    """32 bits."""
    BFLOAT16_LAYERS = "bfloat16_layers"
    """Full training by axolotl: layers in bfloat16, but their norms, embeddings and the LM head in float32."""
    FLOAT32_NORMS = "float32_norms"
    """QLoRA of trl 0.14 to 0.25: norms, biases and adapters in float32, embeddings and the LM head in bfloat16."""

    @property
    def is_of_todays_trl(self) -> bool:
        """Whether a trial can have such weights: those of others have a closed form alone."""
        return self not in (Dtype.BFLOAT16_LAYERS, Dtype.FLOAT32_NORMS)


class Attention(StrEnum):
    """Values of `attn_implementation`, by transformers' names."""

    SDPA = "sdpa"
    FLASH_ATTENTION_2 = "flash_attention_2"
    EAGER = "eager"


ALL_LINEAR = "all-linear"
"""peft's word for every linear layer except the LM head."""


_SAME, _GROWS, _ORDERED = MemoryOrder.SAME, MemoryOrder.GROWS, MemoryOrder.ORDERED

_FULL = "tuning is full"
_NO_ENGINE = "vLLM does not run on the GPU that trains"
_NO_TOWER = "the model has no vision tower"
_NO_FSDP = "distributed_type is not fsdp"
_NO_DEEPSPEED = "distributed_type is not deepspeed"

_FIXED_BATCHES = "micro-batches have a fixed number of rows"

_PREFERRED = frozenset({Recipe.DPO, Recipe.KTO})
_GRPO = frozenset({Recipe.GRPO})


def _of_fsdp(meaning: str, *, default: int, unit: str = "") -> Mapping[str, Declaration]:
    """Return the declaration of a key of FSDP, with transformers' default."""
    return declared(
        meaning,
        group=Group.METHOD,
        memory=_SAME,
        unit=unit,
        null=_NO_FSDP,
        null_given=f"{str(default).lower()}, which is transformers' default",
        given_default=default,
        since="0.2.0",
    )


def _of_deepspeed(
    meaning: str, *, default: object, maximum: int = MAX_COUNT, unit: str = ""
) -> Mapping[str, Declaration]:
    """Return the declaration of a key of DeepSpeed, with accelerate's default."""
    return declared(
        meaning,
        group=Group.METHOD,
        memory=_SAME,
        unit=unit,
        minimum=0,
        maximum=maximum,
        null=_NO_DEEPSPEED,
        null_given=f"{default}, which is accelerate's default",
        given_default=default,
        since="0.2.0",
    )


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """Everything that decides what a trial does, spelled as trl, transformers and peft spell it where they do.

    Each field declares one key; `TRIAL_KEYS` lists them. A new key has the version of the program that adds it
    (`since`) and the value that earlier trials had (`earlier`), so that trial ids stay as they are.

    A specification is normalised by `profiler.config`: defaults are filled in, and a key without meaning is None, so
    that two specifications of the same trial are equal.
    """

    backend: Backend = field(
        metadata=declared(
            "cuda: measured; emulated: on an emulated driver; simulated: on a simulated GPU; cpu: no GPU figures",
            group=Group.PLACE,
            memory=_SAME,
        )
    )
    gpu: str | None = field(
        metadata=declared(
            "the emulated or simulated card, or the card that a larger real one was capped to",
            group=Group.PLACE,
            memory=_ORDERED,
            values=tuple(KNOWN_GPUS),
            null="cpu, or the whole real card",
            null_given="h100-80gb when emulated or simulated, else the whole real card",
        )
    )
    model: str = field(
        metadata=declared(
            "a built-in name, a local path or a hub id",
            group=Group.MODEL,
            memory=_ORDERED,
            trl_names=("model_name_or_path",),
        )
    )
    weights: Weights = field(
        default=Weights.RANDOM, metadata=declared("random or pretrained", group=Group.DATA, memory=_SAME)
    )
    dataset: str | None = field(
        default=None,
        metadata=declared(
            "a local path or a hub id of the prompts",
            group=Group.DATA,
            memory=_SAME,
            null="synthetic prompts",
            null_given="synthetic prompts",
        ),
    )
    recipe: Recipe = field(
        default=Recipe.GRPO,
        metadata=declared("which trainer runs", group=Group.METHOD, memory=_SAME, since="0.2.0", earlier=Recipe.GRPO),
    )
    tuning: Tuning = field(
        default=Tuning.FULL, metadata=declared("full, lora or qlora", group=Group.METHOD, memory=_SAME)
    )
    lora_rank: int | None = field(
        default=None,
        metadata=declared(
            "rank of the LoRA matrices",
            group=Group.METHOD,
            memory=_GROWS,
            unit="rank",
            null=_FULL,
            null_given="16",
            trl_names=("lora_r",),
        ),
    )
    lora_alpha: int | None = field(
        default=None,
        metadata=declared(
            "LoRA's alpha",
            group=Group.METHOD,
            memory=MemoryOrder.NO_EFFECT,
            unit="scale",
            null=_FULL,
            null_given="twice lora_rank",
            trl_names=("lora_alpha",),
        ),
    )
    lora_target_modules: tuple[str, ...] | None = field(
        default=None,
        metadata=declared(
            "modules with an adapter, joined by commas",
            group=Group.METHOD,
            memory=_SAME,
            null=_FULL,
            null_given=ALL_LINEAR,
            trl_names=("lora_target_modules",),
        ),
    )
    lora_dropout: float = field(
        default=0.0,
        metadata=declared(
            "part of the input of each adapter that training drops; without adapters always 0",
            group=Group.METHOD,
            memory=_SAME,
            unit="of the input",
            trl_names=("lora_dropout",),
            since="0.2.0",
            earlier=0.0,
        ),
    )
    bnb_4bit_use_double_quant: bool = field(
        default=True,
        metadata=declared(
            "whether the scales of weights in 4 bits are quantised too; without qlora always true",
            group=Group.METHOD,
            memory=_SAME,
            trl_names=("use_bnb_nested_quant",),
            since="0.2.0",
            earlier=True,
        ),
    )
    optim: Optimizer = field(
        default=Optimizer.ADAMW_TORCH_FUSED,
        metadata=declared(
            "the optimizer, by transformers' name",
            group=Group.METHOD,
            memory=_SAME,
            hints=HINTS,
            trl_names=("optim",),
        ),
    )
    weight_decay: float = field(
        default=0.0,
        metadata=declared(
            "weight decay of matrices; of the optimizers only sgd needs memory for it",
            group=Group.METHOD,
            memory=_SAME,
            unit="weight",
            null_given="0, which is transformers' default",
            trl_names=("weight_decay",),
            since="0.2.0",
            earlier=0.0,
        ),
    )
    num_generations: int = field(
        default=4,
        metadata=declared(
            "completions per prompt",
            group=Group.METHOD,
            memory=_GROWS,
            unit="completions",
            minimum=2,
            why_minimum="GRPO compares the completions of one prompt",
            trl_names=("num_generations",),
            recipes=GENERATING,
        ),
    )
    max_prompt_length: int = field(
        default=256,
        metadata=declared(
            "length of every prompt",
            group=Group.METHOD,
            memory=_GROWS,
            unit="tokens",
            trl_names=("max_prompt_length",),
            recipes=WITH_PROMPTS,
        ),
    )
    max_completion_length: int = field(
        default=786,
        metadata=declared(
            "length of the longest completion",
            group=Group.METHOD,
            memory=_GROWS,
            unit="tokens",
            trl_names=("max_completion_length",),
            recipes=GENERATING,
        ),
    )
    max_length: int | None = field(
        default=None,
        metadata=declared(
            "length of the longest training row; with recipe=dpo or kto prompt and completion",
            group=Group.METHOD,
            memory=_GROWS,
            unit="tokens",
            null="rows are generated",
            null_given="1024, which is trl's default",
            given_default=1024,
            trl_names=("max_length", "max_seq_length"),
            recipes=OF_DATA,
            since="0.2.0",
            earlier=None,
        ),
    )
    lengths: Lengths = field(
        default=Lengths.RAGGED,
        metadata=declared(
            "ragged or forced: lengths of the other completions or rows", group=Group.METHOD, memory=_SAME
        ),
    )
    per_device_train_batch_size: int = field(
        default=4,
        metadata=declared(
            "rows per backward pass: completions, or rows of the data, or with recipe=dpo or reward pairs",
            group=Group.METHOD,
            memory=_GROWS,
            unit="rows",
            trl_names=("per_device_train_batch_size",),
        ),
    )
    gradient_accumulation_steps: int = field(
        default=4,
        metadata=declared(
            "backward passes per optimizer step",
            group=Group.METHOD,
            memory=_GROWS,
            unit="micro-batches",
            trl_names=("gradient_accumulation_steps",),
        ),
    )
    steps_per_generation: int = field(
        default=4,
        metadata=declared(
            "micro-batches generated at once",
            group=Group.METHOD,
            memory=_GROWS,
            unit="micro-batches",
            null_given="gradient_accumulation_steps, which is trl's default",
            trl_names=("steps_per_generation",),
            recipes=GENERATING,
        ),
    )
    use_dynamic_bsz: bool = field(
        default=False,
        metadata=declared(
            "whether the rows of an optimizer step are split by tokens (constructed: trl splits them by rows)",
            group=Group.METHOD,
            memory=_SAME,
            recipes=_GRPO,
            since="0.2.0",
            earlier=False,
        ),
    )
    ppo_max_token_len_per_gpu: int | None = field(
        default=None,
        metadata=declared(
            "most tokens of a micro-batch, padding included",
            group=Group.METHOD,
            memory=_SAME,
            unit="tokens",
            null=_FIXED_BATCHES,
            null_given="16384, which is verl's default",
            given_default=16384,
            recipes=_GRPO,
            since="0.2.0",
            earlier=None,
        ),
    )
    gradient_checkpointing: bool = field(
        default=True,
        metadata=declared(
            "whether backward computes activations again",
            group=Group.METHOD,
            memory=_ORDERED,
            trl_names=("gradient_checkpointing", "activation_checkpointing"),
        ),
    )
    activation_offloading: bool = field(
        default=False,
        metadata=declared(
            "whether activations wait for backward in pinned memory of the host",
            group=Group.METHOD,
            memory=_SAME,
            since="0.2.0",
            earlier=False,
        ),
    )
    torch_empty_cache_steps: int | None = field(
        default=None,
        metadata=declared(
            "optimizer steps between those in which torch's cache is emptied before each backward",
            group=Group.METHOD,
            memory=_SAME,
            unit="optimizer steps",
            null="the cache is not emptied",
            null_given="never, which is transformers' default",
            trl_names=("torch_empty_cache_steps",),
            since="0.2.0",
        ),
    )
    beta: float = field(
        default=0.0,
        metadata=declared(
            "weight of the KL term; above 0 full fine-tuning keeps a reference model",
            group=Group.METHOD,
            memory=_ORDERED,
            unit="weight",
            null_given="0, and with recipe=dpo or kto 0.1, which is trl's default",
            trl_names=("beta",),
            recipes=WITH_REFERENCE,
        ),
    )
    precompute_ref_log_probs: bool = field(
        default=False,
        metadata=declared(
            "whether the log-probabilities of the reference are computed before training, which then has no reference",
            group=Group.METHOD,
            memory=_SAME,
            trl_names=("precompute_ref_log_probs",),
            recipes=_PREFERRED,
            since="0.2.0",
            earlier=False,
        ),
    )
    precompute_ref_batch_size: int | None = field(
        default=None,
        metadata=declared(
            "rows or pairs of which the log-probabilities of the reference are computed at once before training",
            group=Group.METHOD,
            memory=_GROWS,
            unit="rows",
            null="precompute_ref_log_probs is false",
            null_given="per_device_train_batch_size, which is trl's default",
            trl_names=("precompute_ref_batch_size",),
            recipes=_PREFERRED,
            since="0.2.0",
            earlier=None,
        ),
    )
    ref_adapter: bool = field(
        default=False,
        metadata=declared(
            "whether the reference is a frozen copy of the adapters, which trl makes if peft has wrapped the model",
            group=Group.METHOD,
            memory=_SAME,
            recipes=WITH_REFERENCE,
            since="0.2.0",
            earlier=False,
        ),
    )
    critic: bool = field(
        default=False,
        metadata=declared(
            "whether a critic of the same size is trained too, as in PPO (constructed: trl has none)",
            group=Group.METHOD,
            memory=_SAME,
            recipes=_GRPO,
            since="0.2.0",
            earlier=False,
        ),
    )
    attn_implementation: Attention = field(
        default=Attention.SDPA,
        metadata=declared(
            "attention, by transformers' name",
            group=Group.METHOD,
            memory=_SAME,
            null_given="sdpa, and eager where transformers has no sdpa for the model",
            trl_names=("attn_implementation",),
        ),
    )
    dtype: Dtype = field(
        default=Dtype.BFLOAT16,
        metadata=declared(
            "data type of the weights, by torch's name",
            group=Group.METHOD,
            memory=_SAME,
            trl_names=("dtype", "torch_dtype"),
        ),
    )
    bf16: bool = field(
        default=True,
        metadata=declared(
            "autocast to bfloat16 in forward",
            group=Group.METHOD,
            memory=_SAME,
            null_given="true unless fp16, which is trl's default",
            trl_names=("bf16",),
        ),
    )
    fp16: bool = field(
        default=False,
        metadata=declared(
            "autocast to float16 in forward, with scaled gradients",
            group=Group.METHOD,
            memory=_SAME,
            trl_names=("fp16",),
            since="0.2.0",
            earlier=False,
        ),
    )
    logprobs: Logprobs = field(
        default=Logprobs.FUSED,
        metadata=declared("how training computes log-probabilities", group=Group.METHOD, memory=_SAME),
    )
    rollout: Rollout = field(
        default=Rollout.GENERATE,
        metadata=declared("how completions are generated", group=Group.METHOD, memory=_SAME, recipes=GENERATING),
    )
    use_liger_kernel: bool = field(
        default=False,
        metadata=declared(
            "whether Liger's kernels replace norms, rotary embeddings and gated MLPs",
            group=Group.METHOD,
            memory=_SAME,
            trl_names=("use_liger_kernel",),
            since="0.2.0",
            earlier=False,
        ),
    )
    use_vllm: bool = field(
        default=False,
        metadata=declared(
            "whether vLLM generates the completions",
            group=Group.METHOD,
            memory=_SAME,
            trl_names=("use_vllm",),
            recipes=GENERATING,
            since="0.2.0",
            earlier=False,
        ),
    )
    vllm_mode: VllmMode | None = field(
        default=None,
        metadata=declared(
            "where vLLM runs: colocate (in the process that trains) or server (on other GPUs)",
            group=Group.METHOD,
            memory=_SAME,
            null="use_vllm is false",
            null_given="colocate, which is trl's default",
            given_default=VllmMode.COLOCATE,
            trl_names=("vllm_mode",),
            recipes=GENERATING,
            since="0.2.0",
            earlier=None,
        ),
    )
    vllm_gpu_memory_utilization: float | None = field(
        default=None,
        metadata=declared(
            "part of the card that vLLM takes",
            group=Group.METHOD,
            memory=_SAME,
            unit="of the card",
            null=_NO_ENGINE,
            null_given="0.3, which is trl's default",
            given_default=0.3,
            trl_names=("vllm_gpu_memory_utilization",),
            recipes=GENERATING,
            since="0.2.0",
            earlier=None,
        ),
    )
    vllm_enable_sleep_mode: bool | None = field(
        default=None,
        metadata=declared(
            "whether vLLM gives its weights and cache back while the model trains",
            group=Group.METHOD,
            memory=_SAME,
            null=_NO_ENGINE,
            null_given="false, which is trl's default",
            given_default=False,
            trl_names=("vllm_enable_sleep_mode",),
            recipes=GENERATING,
            since="0.2.0",
            earlier=None,
        ),
    )
    vllm_max_model_length: int | None = field(
        default=None,
        metadata=declared(
            "tokens of the longest sequence that vLLM accepts, prompt and completion",
            group=Group.METHOD,
            memory=_SAME,
            unit="tokens",
            null=f"the context of the model, or {_NO_ENGINE}",
            null_given="the context of the model, which is vLLM's default",
            trl_names=("vllm_max_model_length", "vllm_max_model_len"),
            recipes=GENERATING,
            since="0.2.0",
            earlier=None,
        ),
    )
    vllm_tensor_parallel_size: int = field(
        default=1,
        metadata=declared(
            "GPUs that share one engine of vLLM",
            group=Group.METHOD,
            memory=_SAME,
            unit="processes",
            trl_names=("vllm_tensor_parallel_size",),
            recipes=GENERATING,
            since="0.2.0",
            earlier=1,
        ),
    )
    vllm_model_impl: VllmModelImpl = field(
        default=VllmModelImpl.VLLM,
        metadata=declared(
            "whose model vLLM runs: its own (vllm) or that of transformers",
            group=Group.METHOD,
            memory=_SAME,
            trl_names=("vllm_model_impl",),
            recipes=GENERATING,
            since="0.2.0",
            earlier=VllmModelImpl.VLLM,
        ),
    )
    reward_models: tuple[str, ...] | None = field(
        default=None,
        metadata=declared(
            "models that score the completions, joined by commas",
            group=Group.METHOD,
            memory=_SAME,
            null="functions score them",
            null_given="functions score them",
            recipes=SCORED,
            since="0.2.0",
            earlier=None,
        ),
    )
    per_device_eval_batch_size: int | None = field(
        default=None,
        metadata=declared(
            "rows, pairs or completions of an evaluation at once",
            group=Group.METHOD,
            memory=_SAME,
            unit="rows",
            null="no evaluation",
            null_given="no evaluation",
            since="0.2.0",
            earlier=None,
        ),
    )
    images_per_prompt: int | None = field(
        default=None,
        metadata=declared(
            "images in each prompt of a vision-language model",
            group=Group.METHOD,
            memory=_SAME,
            unit="images",
            null=_NO_TOWER,
            null_given="1 where the model has a vision tower",
            recipes=WITH_PROMPTS,
            since="0.2.0",
            earlier=None,
        ),
    )
    min_pixels: int | None = field(
        default=None,
        metadata=declared(
            "fewest pixels that the processor makes of an image",
            group=Group.METHOD,
            memory=_SAME,
            unit="pixels",
            null=_NO_TOWER,
            null_given="that of the published processor",
            trl_names=("min_pixels",),
            recipes=WITH_PROMPTS,
            since="0.2.0",
            earlier=None,
        ),
    )
    max_pixels: int | None = field(
        default=None,
        metadata=declared(
            "most pixels that the processor makes of an image; estimates give every image as many",
            group=Group.METHOD,
            memory=_SAME,
            unit="pixels",
            null=_NO_TOWER,
            null_given="that of the published processor, or what fits max_prompt_length",
            trl_names=("max_pixels",),
            recipes=WITH_PROMPTS,
            since="0.2.0",
            earlier=None,
        ),
    )
    num_processes: int = field(
        default=1,
        metadata=declared(
            "GPUs that train together",
            group=Group.METHOD,
            memory=_SAME,
            unit="processes",
            since="0.2.0",
            earlier=1,
        ),
    )
    distributed_type: DistributedType = field(
        default=DistributedType.NO,
        metadata=declared(
            "how several GPUs train together: multi_gpu (DDP), fsdp or deepspeed",
            group=Group.METHOD,
            memory=_SAME,
            null_given="that of the keys of FSDP or DeepSpeed; else multi_gpu if num_processes is more than 1, or no",
            since="0.2.0",
            earlier=DistributedType.NO,
        ),
    )
    fsdp_version: int | None = field(
        default=None,
        metadata=_of_fsdp("version of FSDP", default=2, unit="version"),
    )
    fsdp_reshard_after_forward: bool | None = field(
        default=None,
        metadata=_of_fsdp("whether FSDP frees the gathered weights of a layer after its forward", default=True),
    )
    fsdp_offload_params: bool | None = field(
        default=None,
        metadata=_of_fsdp(
            "whether FSDP keeps weights, gradients and optimizer states in the memory of the host", default=False
        ),
    )
    fsdp_activation_checkpointing: bool | None = field(
        default=None,
        metadata=_of_fsdp(
            "whether FSDP checkpoints the activations, instead of the model (gradient_checkpointing)", default=False
        ),
    )
    fsdp_cpu_ram_efficient_loading: bool = field(
        default=False,
        metadata=declared(
            "whether with FSDP the first GPU hands out the weights, tensor by tensor, a tied LM head as one more",
            group=Group.METHOD,
            memory=_SAME,
            since="0.2.0",
            earlier=False,
        ),
    )
    cp_size: int | None = field(
        default=None,
        metadata=_of_fsdp(
            "GPUs over which each row is split (context parallelism by ring attention)",
            default=1,
            unit="GPUs",
        ),
    )
    zero_stage: int | None = field(
        default=None,
        metadata=_of_deepspeed(
            "what ZeRO shards: 0 nothing, 1 optimizer states, 2 also gradients, 3 also weights",
            default=2,
            maximum=3,
            unit="stage",
        ),
    )
    offload_optimizer_device: OffloadDevice | None = field(
        default=None,
        metadata=_of_deepspeed("where ZeRO keeps optimizer states and master weights", default=OffloadDevice.NONE),
    )
    offload_param_device: OffloadDevice | None = field(
        default=None,
        metadata=_of_deepspeed("where ZeRO keeps the shards of the weights", default=OffloadDevice.NONE),
    )
    steps: int = field(
        default=3,
        metadata=declared("optimizer steps requested", group=Group.METHOD, memory=_GROWS, unit="optimizer steps"),
    )
    alloc_conf: str = field(
        default="",
        metadata=declared(
            "PYTORCH_ALLOC_CONF of the trial; empty for torch's defaults",
            group=Group.METHOD,
            memory=_SAME,
            null_given="torch's defaults",
        ),
    )
    seed: int = field(
        default=0,
        metadata=declared(
            "seed of the weights and prompts",
            group=Group.DATA,
            memory=_SAME,
            unit="seed",
            minimum=0,
            maximum=2**32 - 1,
            trl_names=("seed",),
        ),
    )

    @property
    def mixed_precision(self) -> bool:
        """Whether training's forward computes under autocast."""
        return self.bf16 or self.fp16

    @property
    def trains_in_bfloat16(self) -> bool:
        """Whether matrix products of training are in bfloat16: autocast decides, or else the weights."""
        return self.bf16 or (self.dtype is Dtype.BFLOAT16 and not self.fp16)

    @property
    def generation_batch_size(self) -> int:
        """Completions that one process generates at once: batch per device times `steps_per_generation`.

        trl's `generation_batch_size` is that of all processes.
        """
        return self.per_device_train_batch_size * self.steps_per_generation

    @property
    def longest(self) -> int:
        """The length that `lengths` varies: tokens of the longest completion, or of the longest row of the data."""
        if self.max_length is None:
            return self.max_completion_length
        return self.max_length - self.max_prompt_length if self.recipe.facts.has_prompts else self.max_length

    @property
    def row_tokens(self) -> int:
        """Tokens of the longest row: prompt and completion, or a row of the data."""
        return self.max_prompt_length + self.max_completion_length if self.max_length is None else self.max_length

    @property
    def training_rows(self) -> int:
        """Rows of one forward pass of training: a pair is two of them."""
        return self.per_device_train_batch_size * (1 if self.recipe.facts.rows_are_single else 2)

    @property
    def rows_per_prompt(self) -> int:
        """Completions of one prompt: those that are generated, or that a row of the data has; 0 if rows are whole."""
        if self.recipe.facts.has_rollout:
            return self.num_generations
        return self.training_rows // self.per_device_train_batch_size if self.recipe.facts.has_prompts else 0

    @property
    def rows_dealt(self) -> int:
        """Rows that one process gets before the next one does: those of a generation, or of a micro-batch of data.

        Source: `get_train_dataloader` of `GRPOTrainer` (trl 1.16), and `BatchSamplerShard` of accelerate 1.15.
        """
        return self.generation_batch_size if self.recipe.facts.has_rollout else self.training_rows

    @property
    def steps_per_unit(self) -> int:
        """Optimizer steps that use the rows of one generation; 1 where rows are data."""
        generates = self.recipe.facts.has_rollout
        return max(1, self.steps_per_generation // self.gradient_accumulation_steps) if generates else 1

    @property
    def loads_engine_once(self) -> bool:
        """Whether vLLM gets the weights once per step, by the first generation with them: it does not sleep then."""
        return self.use_vllm and not self.vllm_enable_sleep_mode

    @property
    def keeps_reference_model(self) -> bool:
        """Whether a reference model is kept: trl creates one for `beta` > 0 unless it can switch an adapter off.

        Nor is there one if the reference was computed before.
        """
        pairs = self.logprobs.pair_loss
        needs_one = self.tuning is Tuning.FULL or (pairs is not None and pairs.has_own_reference)
        return self.beta != 0.0 and needs_one and not self.precompute_ref_log_probs


TRIAL_KEYS = keys_of(TrialSpec)
"""Every key of a trial, in the order of its specification."""

SPEC_KEYS = tuple(key.name for key in TRIAL_KEYS)
"""The names of all keys, in the order of the specification."""

SHOWN_KEYS = tuple(key.name for group in (Group.METHOD, Group.DATA) for key in TRIAL_KEYS if key.group is group)
"""Keys that describe a row of a table, the most important first. Place and model are columns or sections."""

PLACE_KEYS = tuple(key.name for key in TRIAL_KEYS if key.group is Group.PLACE)
"""Keys that say where a trial runs."""

WORKLOAD_KEYS = tuple(key.name for key in TRIAL_KEYS if key.group is not Group.PLACE)
"""Keys of a trial apart from where it runs: equal for one workload on two cards."""


def key_named(name: str) -> Key:
    """Return the key of a trial by its name."""
    return TRIAL_KEYS[SPEC_KEYS.index(name)]


def run_key(spec: TrialSpec) -> Hashable | None:
    """Return a key that is equal for all specifications whose results one simulated run provides.

    They differ in the size of the card or the settings of the allocator: allocations depend on the kernels that a card
    runs, not on its memory. A card that would choose another kernel somewhere in the run gets a run of its own. None
    with any other backend, where every trial is a run of its own, and with vLLM, which takes a part of the card.
    """
    if spec.backend is not Backend.SIMULATED or spec.gpu is None or spec.use_vllm:
        return None
    return (replace(spec, gpu=None, alloc_conf=""), KNOWN_GPUS[spec.gpu].kernel_family)


RAGGED_ROWS = 4
"""Rows after which the lengths of ragged completions repeat."""


def completion_lengths(*, lengths: Lengths, rows: int, max_completion_length: int) -> tuple[int, ...]:
    """Return the tokens of each completion of one generation batch, in the order of generation.

    `forced`: every row at the maximum. `ragged`: row i has the maximum minus i mod 4 eighths of it (100 %, 87.5 %,
    75 %, 62.5 %, and again), at least one token. So one row of a batch is at the maximum, as in real batches where
    `max_completion_length` cuts the longest.
    """
    if lengths is Lengths.FORCED:
        return (max_completion_length,) * rows
    cuts = [row % RAGGED_ROWS * max_completion_length // 8 for row in range(rows)]
    return tuple(max(1, max_completion_length - cut) for cut in cuts)


@dataclass(frozen=True, kw_only=True)
class Evaluations:
    """Evaluations of one run: when they come, and their rows. Keys are transformers'.

    Rows of data, and prompts, are the same each time; completions are generated anew.
    """

    eval_steps: int | None
    """Optimizer steps from one to the next; None: only before training."""
    per_device_eval_batch_size: int
    """Rows at once, or pairs, or completions."""
    num_generations_eval: int | None = None
    """Completions that are generated per prompt; None: none are generated."""
    prompts: Sequence[int] = ()
    """Tokens of each prompt; empty for rows that are whole."""
    completions: Sequence[int]
    """Tokens of each row, of a pair the chosen one first; of rows that are generated those of one evaluation after the
    other, which repeat."""
    samples: Sequence[int] = ()
    """How many of `prompts` each evaluation has, one after the other; empty: all of them each time."""
    eval_delay: float = 0
    """Steps before which none comes."""
    eval_on_start: bool = False
    """Whether one comes before the first step."""
    eval_accumulation_steps: int | None = None
    """Batches whose losses stay on the card together; None: all."""

    def follows(self, step: int, steps: int) -> bool:
        """Return whether one follows a step, from 1 on; the last step of a run has one in any case.

        Source: `DefaultFlowCallback.on_step_end` of transformers 5.23.
        """
        if self.eval_steps is None or step < self.eval_delay:
            return False
        return step == steps or step % self.eval_steps == 0

    @property
    def rows(self) -> int:
        """Rows of one evaluation; both of a pair."""
        each = self.num_generations_eval
        return len(self.completions) if each is None else each * len(self.prompts)

    def count(self, steps: int) -> int:
        """Return how many there are in a run of so many steps, with one before the first.

        By hand, after every 4 of 10 steps and before the first: 1 + 3.
        """
        return self.eval_on_start + sum(self.follows(step, steps) for step in range(1, steps + 1))

    def prompts_of(self, number: int) -> range:
        """Return places of the prompts of an evaluation, from 0. By hand, samples of 2 and 3: the last has 2, 3, 4."""
        if not self.samples:
            return range(len(self.prompts))
        first = sum(self.samples[:number])
        return range(first, first + self.samples[number])

    def completions_of(self, number: int) -> Sequence[int]:
        """Return the completions of an evaluation, from 0. By hand, of 8 for 4 rows the third has the first four."""
        each = self.num_generations_eval or 1
        prompts = self.prompts_of(number)
        if self.samples:
            return self.completions[each * prompts.start : each * prompts.stop]
        rows = each * len(prompts)
        start = number * rows % len(self.completions)
        return self.completions[start : start + rows]


@dataclass(frozen=True, kw_only=True)
class RowLengths:
    """Tokens of the rows of one run, instead of those that a trial's specification gives them.

    Both repeat from the first one when they end. Neither is longer than the specification's maximum.
    """

    prompts: Sequence[int] = ()
    """Of each prompt, in the order of their use. Empty: every one has the maximum."""
    completions: Sequence[int]
    """Of each completion, in the order of generation; of rows of data without a prompt, the whole row."""
    shuffles: Sequence[int] = ()
    """Seed by which each generation is shuffled into micro-batches; they repeat too. Empty: its number, from 0."""
    evaluations: Evaluations | None = None
    """None: the run has none."""
    reference: "RowLengths | None" = None
    """Of the rows over which a reference runs before training. None: of training."""
    loaded: Sequence[bool] = ()
    """Whether vLLM has the weights before each generation; they repeat too. Empty: after evaluations alone."""

    def has_weights(self, spec: TrialSpec, generation: int) -> bool:
        """Return whether vLLM has the weights at a generation, from 0: an evaluation has generated with them.

        Source: `_generate_single_turn` of `GRPOTrainer` (trl 1.16).
        """
        if not spec.loads_engine_once:
            return False
        if self.loaded or self.evaluations is None:
            return bool(self.loaded) and self.loaded[generation % len(self.loaded)]
        if generation == 0:
            return self.evaluations.eval_on_start
        return self.evaluations.follows(generation * spec.steps_per_unit, spec.steps)

    @classmethod
    def joined(cls, parts: Sequence["RowLengths"]) -> "RowLengths":
        """Return the rows of several parts, one after the other, without evaluations."""
        return cls(
            prompts=[length for part in parts for length in part.prompts],
            completions=[length for part in parts for length in part.completions],
            shuffles=[seed for part in parts for seed in part.shuffles],
            loaded=[each for part in parts for each in part.loaded],
        )

    def of_all(self, spec: TrialSpec) -> "RowLengths":
        """Return the rows of all processes, each of which has these; `Draw.of_each` undoes it."""
        part, each, processes = spec.rows_dealt, max(1, spec.rows_per_prompt), spec.num_processes
        if processes == 1:
            return self
        prompts = processes * part // (each * max(1, part // each))
        return replace(
            self,
            prompts=_repeated(self.prompts, max(1, part // each), prompts),
            completions=_repeated(self.completions, part, processes),
        )

    def shorter(self, factor: float, multiple: int, *, moved: int = 0) -> "RowLengths":
        """Return shorter rows.

        Args:
            factor: By which they are shorter, at most.
            multiple: Of which the difference is one: rows of another number of tokens than a multiple of 8 stay so.
            moved: Tokens that prompts lose, and completions get, where both allow it.
        """

        def less(length: int) -> int:
            return length - int((length - factor * length) / multiple) * multiple

        prompts, completions = [*map(less, self.prompts)], [*map(less, self.completions)]
        can_move = min(prompts, default=0) > moved and max(completions) + moved <= max(self.completions)
        moved = moved if can_move else 0
        longer = [each + moved for each in completions]
        return replace(self, prompts=[each - moved for each in prompts], completions=longer)


def _repeated(lengths: Sequence[int], part: int, times: int) -> Sequence[int]:
    """Repeat each part. By hand, 3, 4, 5 and 6 in parts of two, twice: 3, 4, 3, 4, 5, 6, 5, 6."""
    return [length for at in range(0, len(lengths), part) for length in (*lengths[at : at + part],) * times]


def dealt(lengths: Sequence[int], part: int, process: int, processes: int) -> tuple[int, ...]:
    """Return the parts of a process. By hand, of 1 to 8 in parts of two the second of two processes has 3, 4, 7, 8."""
    starts = range(part * process, len(lengths), part * processes)
    return tuple(length for at in starts for length in lengths[at : at + part])


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """A trial of a sweep before it runs."""

    trial_id: str
    """Hash of everything that decides the result of the trial (`profiler.config.trials.identity`)."""
    grid: str
    label: str
    """The method of the trial in tables: ``"LoRA + checkpointing"``."""
    spec: TrialSpec
