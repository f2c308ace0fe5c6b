"""Names of OpenRLHF (`python -m openrlhf.cli.train_*`): its options of SFT, DPO and reward models.

Sources: `openrlhf/cli/train_*.py`, `openrlhf/trainer/`, `openrlhf/models/` and `openrlhf/utils/deepspeed/` of 0.11.2,
whose options have groups (`--ds.zero_stage`); and of the tags v0.5.2 to v0.9.10 for the names before (`--zero_stage`).
From 0.7.0 on the losses are those of 0.11.2.
"""

from collections.abc import Iterator, Mapping

from profiler.config.files.formats.together import EXPERTS, PROCESSES, only_text, refused, words
from profiler.config.files.vocabulary import Vocabulary
from profiler.config.notes import Note
from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import ZERO_OF_WEIGHTS, DistributedType, Lengths, Logprobs

COMMAND = "openrlhf.cli"
"""The key that names the trainer: the module that is started."""
_NAME, _REENTRANT = "OpenRLHF", "gradient_checkpointing_use_reentrant"
_SFT, _DPO, _REWARD = "train_sft", "train_dpo", "train_rm"
_LOSSES: Mapping[object, Logprobs] = {_SFT: Logprobs.NLL_KEPT, _DPO: Logprobs.PAIRS_WIDENED}
_FEWEST = 2
"""Processes where the launcher leaves their number open: the fewest over which ZeRO shards."""

_EARLIER: Mapping[str, str] = dict(
    pair.split("=")
    for pair in words(
        """
    model.model_name_or_path=pretrain model.gradient_checkpointing_enable=gradient_checkpointing
    model.gradient_checkpointing_reentrant=gradient_checkpointing_use_reentrant model.aux_loss_coef=aux_loss_coef
    data.max_len=max_len train.micro_batch_size=micro_train_batch_size train.batch_size=train_batch_size
    train.full_determinism_enable=full_determinism ds.zero_stage=zero_stage ds.adam_offload=adam_offload ds.zpg=zpg
    ds.param_dtype=param_dtype ds.attn_implementation=attn_implementation ds.packing_samples=packing_samples
    ds.lora.rank=lora_rank ds.lora.alpha=lora_alpha ds.lora.dropout=lora_dropout ds.lora.target_modules=target_modules
    ds.load_in_4bit=load_in_4bit ds.use_liger_kernel=use_liger_kernel ds.overlap_comm=overlap_comm
    ds.grad_accum_dtype=grad_accum_dtype ds.ring_attn_size=ring_attn_size ref.model_name_or_path=ref_pretrain
    ds.tensor_parallel_size=ds_tensor_parallel_size ds.deepcompile=deepcompile ref.offload=ref_offload model.beta=beta
    """
    )
)
"""The name before 0.11 of each option that decides memory."""


def _earlier(leaves: Mapping[str, object]) -> dict[str, object]:
    """Return the options by their names before 0.11."""
    return {_EARLIER.get(key, key): value for key, value in leaves.items()}


def _has_groups(leaves: Mapping[str, object]) -> bool:
    """Return whether the options have the names of 0.11."""
    return any(key in _EARLIER or key.partition(".")[0] in ("ckpt", "logger", "data", "adam") for key in leaves)


def _or(value: object, default: object) -> object:
    return default if value is None else value


def _is_packed(stated: Mapping[str, object]) -> bool:
    return stated.get("packing_samples") is True


def _passes(stated: Mapping[str, object], rows: object) -> int:
    """Return the micro-batches of a step (`setup_distributed` in `utils/deepspeed/deepspeed.py`)."""
    match (rows, _or(stated.get("train_batch_size"), 128), _or(stated.get(PROCESSES), _FEWEST)):
        case (int(rows), int(whole), int(processes)) if rows > 0 and processes > 0:
            return max(1, whole // rows // processes)
    return 1


def _keys(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return rows, types, attention (flash-attn's of packed rows), checkpointing and adapters (`models/actor.py`)."""
    stated, trainer = _earlier(leaves), leaves.get(COMMAND)
    attention = str("flash_attention_2" if stated.get("flash_attn") is True else stated.get("attn_implementation"))
    is_flash = attention in ("None", "flash_attention_3") or _is_packed(stated)
    rank, rows = stated.get("lora_rank"), _or(stated.get("micro_train_batch_size"), 1 if trainer == _REWARD else 8)
    found: dict[str, object] = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": _passes(stated, rows),
        "max_length": _or(stated.get("max_len"), 2048 if trainer == _SFT else 512),
        "dtype": "bfloat16",
        "bf16": True,
        "attn_implementation": "flash_attention_2" if is_flash else attention,
        "gradient_checkpointing": stated.get("gradient_checkpointing") is True,
        "use_peft": rank not in (None, 0),
        **({"beta": _or(stated.get("beta"), 0.1)} if trainer == _DPO else {}),
    }
    if found["gradient_checkpointing"]:
        found["gradient_checkpointing_kwargs"] = {"use_reentrant": stated.get(_REENTRANT) is True}
    if found["use_peft"]:
        alpha, dropout = _or(stated.get("lora_alpha"), 16), _or(stated.get("lora_dropout"), 0)
        targets = _or(stated.get("target_modules"), "all-linear")
        found.update(lora_r=rank, lora_alpha=alpha, lora_dropout=dropout, lora_target_modules=targets)
    return found


def _trial(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return the loss, that packed rows are the longest, and how DeepSpeed shares (`auto` is its default)."""
    stated = _earlier(leaves)
    return {
        "logprobs": _LOSSES.get(leaves.get(COMMAND), Logprobs.FUSED).value,
        "distributed_type": DistributedType.DEEPSPEED.value,
        "zero_stage": _or(stated.get("zero_stage"), 2),
        "offload_optimizer_device": "cpu" if stated.get("adam_offload") is True else "none",
        **({} if isinstance(leaves.get(PROCESSES), int) else {"num_processes": _FEWEST}),
        **({"lengths": Lengths.FORCED.value} if _is_packed(stated) else {}),
    }


def _is_read(leaves: Mapping[str, object]) -> Iterator[Fault | Note]:
    """Refuse what the names before 0.11 leave to the version, and types without a formula."""
    stated, is_earlier = _earlier(leaves), not _has_groups(leaves)
    if stated.get("param_dtype") not in (None, "bf16"):
        yield refused("dtype", stated["param_dtype"], "has no formula here; only bf16")
    elif is_earlier and stated.get("bf16") is not True and stated.get("param_dtype") is None:
        problem = f"is absent, and then {_NAME} trains in float32 before 0.9.3, and in bfloat16 since"
        yield refused("bf16", None, problem, "Give bf16=true as well, if it is the later one.")
    if is_earlier and not (stated.get("flash_attn") is True or stated.get("attn_implementation") or _is_packed(stated)):
        problem = f"is absent, and then {_NAME} has eager attention before 0.8.10, and flash_attention_2 since"
        yield refused("attn_implementation", None, problem, "Give attn_implementation= as well.")
    if EXPERTS.search(str(model := stated.get("pretrain"))):
        problem = f"has experts, by its name, and {_NAME} keeps what routers say of each token, without a formula here"
        yield refused("model", model, problem)
    if (reference := stated.get("ref_pretrain")) not in (None, "", model):
        yield refused("ref_pretrain", reference, f"is another model than {model}, and may have other sizes")
    if stated.get("ref_offload") is True and stated.get("zero_stage") == ZERO_OF_WEIGHTS:
        yield refused("ref_offload", True, "moves shards of the reference to the host, without a formula here")
    yield from only_text("pretrain", _NAME, stated)


def _says(leaves: Mapping[str, object]) -> Iterator[Fault | Note]:
    """Name what the options leave open."""
    stated, found, processes = _earlier(leaves), _keys(leaves), _or(leaves.get(PROCESSES), _FEWEST)
    passes, whole = found["gradient_accumulation_steps"], _or(stated.get("train_batch_size"), 128)
    text = f"gradient_accumulation_steps={passes} (train_batch_size={whole}, processes: {processes})"
    yield Note(key="gradient_accumulation_steps", text=text)
    if not isinstance(leaves.get(PROCESSES), int):
        text = f"num_processes={_FEWEST} (the fewest over which ZeRO shards, as the launcher leaves it open)"
        yield Note(key="num_processes", text=text)
    if stated.get("ref_offload") is True:
        yield Note(key="", text="ref_offload=true moves nothing to the host below zero_stage=3")
    if _is_packed(stated):
        yield Note(key="lengths", text=f"each row of a micro-batch has {found['max_length']} tokens (packing_samples)")
    if (loss := _LOSSES.get(leaves.get(COMMAND))) is not None:
        since = "" if _has_groups(leaves) else "; before 0.7.0 the loss keeps more of them"
        stay = "stay until the next" if loss is Logprobs.NLL_KEPT else "stay until backward"
        yield Note(key="logprobs", text=f"logprobs={loss} (in {_NAME} logits are float32, and {stay}{since})")


_FREE = words(
    """
    ckpt.output_dir ckpt.save_steps ckpt.save_hf ckpt.disable_ds ckpt.path ckpt.max_num ckpt.max_mem ckpt.load_enable
    ckpt.best_metric_key logger.logging_steps logger.wandb.key logger.wandb.org logger.wandb.group logger.wandb.project
    logger.wandb.run_name logger.tensorboard_dir eval.steps eval.dataset eval.split train.seed train.max_epochs
    model.pretrain_mode_enable model.compute_fp32_loss_enable model.margin_loss_enable model.loss_type
    ds.use_universal_ckpt ds.value_head_prefix ds.ring_attn_head_stride data.disable_fast_tokenizer
    data.dataloader_num_workers data.dataset data.dataset_probs data.dataset_split data.max_samples data.multiturn
    data.input_key data.output_key data.prompt_key data.chosen_key data.rejected_key data.input_template
    data.apply_chat_template data.tokenizer_chat_template adam.lr adam.betas adam.eps adam.weight_decay muon.lr
    muon.momentum muon.ns_steps muon.nesterov muon.no_nesterov lr_scheduler lr_warmup_ratio min_lr_ratio max_norm
    local_rank use_ms save_path save_steps save_hf_ckpt disable_ds_ckpt logging_steps eval_steps ckpt_path max_ckpt_num
    max_ckpt_mem load_checkpoint use_ds_universal_ckpt seed disable_fast_tokenizer dataloader_num_workers max_epochs
    learning_rate pretrain_mode l2 adam_betas dataset dataset_probs dataset_split train_split eval_dataset eval_split
    input_key output_key prompt_key chosen_key rejected_key input_template apply_chat_template tokenizer_chat_template
    max_samples multiturn use_wandb wandb_org wandb_group wandb_project wandb_run_name use_tensorboard ring_head_stride
    value_head_prefix compute_fp32_loss margin_loss loss ipo label_smoothing nll_loss_coef model.ipo_enable
    model.label_smoothing model.nll_loss_coef universal_ckpt
    """
)

_CHANGES: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(words("full_determinism load_in_4bit use_liger_kernel overlap_comm deepcompile"), (False,)),
    **dict.fromkeys(words("torch_compile disable_trace_cache"), (False,)),
    **dict.fromkeys(words("zpg ring_attn_size ds_tensor_parallel_size"), (1,)),
    "aux_loss_coef": (0, 0.0),
    "grad_accum_dtype": ("bf16",),
    "optim": ("adam",),
    "ds.experts_implementation": (),
}
_BY_RULE = words(
    f"""
    micro_train_batch_size train_batch_size max_len zero_stage adam_offload bf16 param_dtype flash_attn
    attn_implementation packing_samples gradient_checkpointing gradient_checkpointing_use_reentrant lora_rank
    lora_alpha lora_dropout target_modules beta ref_pretrain ref_offload {PROCESSES}
    """
)

OPENRLHF = Vocabulary(
    version=f"{_NAME} 0.7 to 0.11",
    names=dict.fromkeys(("pretrain", "model.model_name_or_path"), "model_name_or_path"),
    defaults={"optim": "adamw_torch_fused", "use_liger_kernel": False, "packing": False},
    recipe_key=COMMAND,
    recipes={_SFT: Recipe.SFT, _DPO: Recipe.DPO, _REWARD: Recipe.REWARD},
    unread={
        **dict.fromkeys(words("train_kto train_kd train_ppo"), "keeps several models and all of their logits"),
        "train_prm": "makes the logits of all tokens for two labels, without a formula here",
        "train_ppo_ray": "trains and generates in several processes on one GPU, whose sum has no formula here",
    },
    rules=(_keys,),
    trial=(_trial,),
    by_rule=_BY_RULE | {new for new, earlier in _EARLIER.items() if earlier in _BY_RULE},
    checks=(_is_read, _says),
    free=_FREE,
    changes={**_CHANGES, **{new: _CHANGES[old] for new, old in _EARLIER.items() if old in _CHANGES}},
)
"""Its table."""

MODULES = tuple(map(str, (*OPENRLHF.recipes, *OPENRLHF.unread)))
"""What trains, of the package `openrlhf.cli`."""
