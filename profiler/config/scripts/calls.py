"""Names of the calls in a script that configure a training, and trl's names of their arguments."""

from profiler.domain.trials.recipe import Recipe

RECIPES = {"GRPOConfig": Recipe.GRPO, "RLOOConfig": Recipe.RLOO, "SFTConfig": Recipe.SFT}

TRAINERS = {"GRPOTrainer": Recipe.GRPO, "RLOOTrainer": Recipe.RLOO, "SFTTrainer": Recipe.SFT}

OTHER_CONFIGS = frozenset(
    """
    DPOConfig KTOConfig RewardConfig PPOConfig ORPOConfig CPOConfig BCOConfig OnlineDPOConfig GKDConfig
    NashMDConfig XPOConfig PRMConfig AsyncGRPOConfig AsyncGRPOTrainer A2POConfig GMPOConfig GOLDConfig IWOPDConfig
    SDFTConfig SDPOConfig TPOConfig DistillationConfig ServerDistillationConfig AsyncDistillationConfig
    """.split()  # noqa: SIM905
)
"""Arguments of trl's trainers that have no recipe here."""

UNSLOTH = ("FastLanguageModel", "FastModel", "FastVisionModel")

CAUSAL = ("ForCausalLM", "ForImageTextToText", "ForConditionalGeneration", "ForVision2Seq")

BITSANDBYTES = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
"""trl's names of the fields of `BitsAndBytesConfig`."""

LOADED = {
    "pretrained_model_name_or_path": "model_name_or_path",
    "torch_dtype": "dtype",
    "dtype": "dtype",
    "attn_implementation": "attn_implementation",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
}
"""trl's names of the arguments of `from_pretrained`."""

NAMES_OF_MODELS = ("model", "model_name_or_path", "pretrained_model_name_or_path")

PATCHES_TRL = "unsloth"
"""The module that changes trl's trainers where it is imported."""
