"""llm-analysis 0.2.2: `LLMAnalysis.training`."""

from maintenance.benchmark.adapters.question import GIB, NotCoveredError, Question, Said

_PARTS = ("weight", "gradient", "optimizer_state", "activation")


def answer(question: Question) -> Said:
    """Return the sum of weights, gradients, states of Adam and activations of one card."""
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import DtypeConfig, GPUConfig, ModelConfig, ParallelismConfig

    job, config, (heads, kv_heads, _) = question.job, question.config, question.heads
    question.needs("recipe", "sft")
    question.needs("tuning", "full")
    question.needs("optim", "adamw_torch", "adamw_torch_fused")
    question.needs("distributed_type", "no", "multi_gpu", "deepspeed")
    question.needs("offload_optimizer_device", None, "none")
    processes, is_half = job["num_processes"], question.half_type != "fp32"
    model = ModelConfig(
        name=job["model"],
        num_layers=config["num_hidden_layers"],
        n_head=heads,
        hidden_dim=config["hidden_size"],
        vocab_size=config["vocab_size"],
        max_seq_len=max(question.length, config.get("max_position_embeddings", 0)),
        num_key_value_heads=kv_heads,
        ffn_embed_dim=config["intermediate_size"],
        expansion_ratio=config["intermediate_size"] / config["hidden_size"],
        model_type=config["model_type"],
    )
    bits = 16 if is_half else 32
    analysis = LLMAnalysis(
        model,
        GPUConfig("card", question.card_bytes / GIB, 1000, 100, 1e-6, 100),
        DtypeConfig("types", bits, bits, bits),
        ParallelismConfig(dp_size=processes),
        flops_efficiency=0.5,
        hbm_memory_efficiency=0.8,
    )
    try:
        found = analysis.training(
            batch_size_per_gpu=job["per_device_train_batch_size"],
            seq_len=question.length,
            activation_recomputation=ActivationRecomputation.FULL
            if job["gradient_checkpointing"]
            else ActivationRecomputation.NONE,
            ds_zero=DSZeRO(job["zero_stage"] or 0),
            flash_attn=job["attn_implementation"] != "eager",
            mlp_gated_linear_units=True,
            # Gradients take the first, states of Adam both: here in the type of the weights, without a master copy.
            master_weights_dtype_bytes=bits // 8,
            other_op_bytes=bits // 8,
        )
    except AssertionError as error:
        raise NotCoveredError(str(error).splitlines()[0]) from error
    return {"allocated": int(sum(found[f"{part}_memory_per_gpu"] for part in _PARTS))}
