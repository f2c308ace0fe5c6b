"""From untyped keys to a typed specification, and from a grid with overrides to trials.

The identity of a trial, and which trials need at most as much memory as others. Options of a run are one value, made
here and carried whole to the worker; commands declare theirs as fields, and readers, help texts and pages derive. The
files of trl and of verl are read here, with what their releases changed and what each field does to memory. YAML,
JSON and Python of others are parsed in one place, within limits of size, depth and number of values. Every fault
names the key, the value, what is allowed and a hint.

Files that are refused:
    - A file for another trainer than GRPO, RLOO, SFT, DPO, KTO and reward models.
    - A file of another program, by its signature: NeMo-RL, prime-rl, torchtune, Unsloth, EasyR1, ms-swift on Megatron,
      trl's AsyncGRPOTrainer, OpenRLHF but for three commands, and a shell script that runs another program (the
      sentence says which).
    - A file of which most keys are unknown (at least half where it lacks `model_name_or_path`).
    - A key of your script that means what trl has a key for (`kl_beta`, `group_size`, `target_modules`), where trl's
      key is not in the file. The same key on the command line settles it (`beta=0.04`).
    - A value that its library does not know (`stage: 9`, `fsdp: full_shrad`), or that has no formula (`HYBRID_SHARD`).

Files of LLaMA-Factory, ms-swift and axolotl:
    - Names and defaults are those of one version, which the answer names. A key that changes memory and has no equal in
      trl is refused, whatever else the file says.
    - Their trainers of rows have the loss of transformers, with the logits of all tokens. ms-swift leaves out those of
      prompts, and axolotl has kernels of its own for adapters: "the figure may be too high". Over 4-bit weights their
      adapters are float32, and those of trl bfloat16: this is named and not counted.
    - Without a launcher that says otherwise there is one process.
    - Models with towers are refused, because other parts of the towers are frozen and adapted than in trl.
    - A script of Unsloth gets two bounds: from above trl's trainer with the settings that Unsloth makes effective, and
      what Unsloth adds; from below weights, adapters, gradients and optimizer states. Of most names Unsloth loads a
      4-bit checkpoint of its own, of which the upper bound has all linear layers in 16 bits.

Models:
    - Of a `model_type` that the estimate does not know, the parameters are counted by transformers on torch's meta
      device, in a process of its own. The model is answered if the closed form counts as many, with a line that says
      that its activations are assumed, and refused if not. The refusal says what is known: the parameters, those of
      towers, the linear layers, and what weights, gradients and optimizer states take without any activation.
    - Quantised checkpoints (gpt-oss is in MXFP4) are refused, except 4 bits of bitsandbytes with `tuning=qlora`.
      `bnb_4bit_use_double_quant=false` is the default of trl and transformers, and of a recipe that does not say it:
      0.5625 bytes per weight in place of 0.5161. A sweep has double quantisation unless the key says otherwise.
    - A `config.json` that transformers refuses is refused, by the field that is wrong: heads of keys that do not
      divide the heads, an odd `head_dim`, `layer_types` that name too few layers, a class with another head than a
      language model's, a key that is there twice.
    - `attention_dropout` counts where attention is computed by matrix products (`eager`, or `sdpa` without a kernel);
      fused kernels keep no mask. Values that change memory and have no formula, such as `resid_pdrop` or rows beyond a
      `sliding_window`, are named with the direction of the error: "the figure may be too low".
    - **LoRA on experts.** Of `qwen3_moe`, `glm4_moe`, `glm4_moe_lite`, `deepseek_v2`, `deepseek_v3`, `olmoe` and
      `mixtral`, peft adapts experts with `all-linear`, and by the names `gate_proj` with `up_proj` and `down_proj` (of
      `mixtral` `w1` with `w3`, and `w2`), and `gate` for the router. Then each layer makes the adapted weights of all
      its experts anew, in forward and in backward, and dense MLPs of the model have no adapter. Of `qwen2_moe` it
      adapts linear layers only, which includes the shared expert, and of `gpt_oss` those of attention. Adapted experts
      that are sharded are refused.
    - **gpt-oss** runs in eager attention; its sliding window counts. vLLM's cache is counted as if no layer slid.
    - **DeepSeek-V2, DeepSeek-V3, Moonlight and GLM-4.7-Flash** (latent attention): transformers caches the vectors of
      which keys and values are made, as vLLM does, and makes those of all heads and tokens anew for each generated
      token. Adapters of `all-linear` are on experts too. Checkpoints in 8 bits are refused; DeepSeek-V3 is built in in
      bfloat16. Kimi-K2 names code of its own (`kimi_k2`), which no trial runs; with `model_type` `deepseek_v3` and
      weights in bfloat16 it is read.
    - **Qwen3-Next and Qwen3.5** (linear attention) as models of text: counted is the delta rule as transformers
      computes it in PyTorch, which keeps 40 times as much as its result; the answer says so. Refused are vLLM, a
      critic, ZeRO, FSDP of Qwen3.5 (accelerate does not find its layers), Liger, other types than bfloat16 with
      autocast, and `layer_types` in another order. Of `qwen3_next` peft adapts experts with `all-linear`, of
      `qwen3_5_moe_text` linear layers only. Qwen3.5 with its vision tower is refused.
    - **Gemma 4** as a model of text has a closed form. Refused are its vLLM, ZeRO, FSDP, Liger, and FlashAttention-2,
      which lacks heads of 512. Of 26B-A4B, `all-linear` adapts the linear layers and the router (`proj`), not the
      experts, which stay in 16 bits. Of E2B and E4B, with embeddings for each layer and layers that share keys,
      several GPUs, weights in float32 and `logprobs` of row after row are refused too, and reserved memory is a bound
      without a replay. **Gemma 3n** and **Nemotron-H** are simulated. Llama 4's has no base model for trl 1.16, so no
      trial runs it.
    - **Gemma 3 and 4 with their towers**, as published, are counted for rows of text, which pass by the towers: they
      are loaded, and get no gradient and no state; `all-linear` adapts them. trl loads the class that the file names
      (`create_model_from_path`). On one GPU, without vLLM, a critic, Liger and a reward model. With
      `attn_implementation=sdpa` stated, transformers refuses E2B and E4B, whose tower for sound has eager attention
      alone; left out, it takes sdpa for the rest, which is counted.
    - **Decoding copies weights.** With `rollout=generate`, transformers copies the weights of the expert of each pair
      of a sequence and an expert: 2.3 GiB for 32 sequences of Qwen3-30B-A3B.
    - **Which expert gets how many tokens** does not change memory: every pair of a token and an expert has a row.
    - A row longer than the model's context is a warning: rotary positions have no end. `rope_scaling`
      (`rope_parameters` in files of transformers 5) lengthens the context; vLLM refuses a longer
      `vllm_max_model_length`. `solve` stays within the context. A model with a table of learned positions is refused
      there.
"""
