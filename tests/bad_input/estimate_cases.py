"""Bad input of `python -m profiler.estimate`."""

import json

from cases import BOMB, DEEP_PATH, LONG, Case, Special, bad

MODEL = "model=tiny"


def config(content: str | bytes | Special, *, says: str = "", sentences: int = 1) -> Case:
    """A configuration file."""
    return bad("config=f.yaml", files={"f.yaml": content}, says=says, sentences=sentences)


def model(content: str | bytes | Special, *, says: str = "") -> Case:
    """A `config.json` of a model."""
    return bad("model=config.json", files={"config.json": content}, says=says)


def architecture(**changes: object) -> str:
    """A small `config.json` with changes."""
    sizes = ("intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    return json.dumps({"hidden_size": 8, **dict.fromkeys(sizes, 1), **changes})


SEES = "model=qwen2.5-vl-3b"

_VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=qwen2.5-7b"

WITHOUT_KEY = (
    bad(MODEL, "train.py", says="argument=train.py: is not of the form key=value. Write config=train.py."),
    bad(MODEL, "x.yaml", says="argument=x.yaml: is not of the form key=value. Write config=x.yaml."),
)

HOST = (
    bad(MODEL, "host=64", says="host= … must be a size above 0 such as 64GiB, 256GB or 1.5TiB"),
    bad(MODEL, "host=0GiB", says="host= … must be a size above 0"),
    bad(MODEL, "host=", says="host= … must be a size above 0"),
    bad(MODEL, "host=64GiB,128GiB", says="host= … must be a size above 0"),
    bad(MODEL, "gpus_per_node=0", says="gpus_per_node= … must be a whole number of at least 1"),
    bad(MODEL, "gpu=any", "host=64GiB", says="host= … is for the estimate of one trial on one card"),
    bad("config=f.sh", "host=64GiB", files={"f.sh": _VERL}, says="host= … has no formula for jobs of verl"),
)

IMAGES = (
    bad(MODEL, "images_per_prompt=2", says="images_per_prompt= … has no meaning with model=tiny, which has no vision"),
    bad(MODEL, "max_pixels=401408", says="max_pixels= … has no meaning with model=tiny, which has no vision tower"),
    bad(SEES, "images_per_prompt=0", says="images_per_prompt= … must be a whole number of at least 1"),
    bad(SEES, "max_pixels=783", says="max_pixels= … is less than one token of qwen2.5-vl-3b, which has 784 pixels"),
    bad(SEES, "max_pixels=1000", "min_pixels=2000", says="min_pixels= … is more than max_pixels=1000"),
    bad(SEES, "max_pixels=401408", "max_prompt_length=500", says="max_prompt_length= … is less than the 512 tokens"),
    bad(SEES, "images_per_prompt=3", "max_prompt_length=2", says="max_prompt_length= … is less than the 3 tokens"),
    bad(SEES, "max_pixels=many", says="max_pixels= … must be a whole number of at least 1"),
    bad(SEES, "tuning=qlora", says="tuning= … has no closed-form estimate with a model that sees images"),
    bad(SEES, "dtype=float16", says="dtype= … has no closed-form estimate with a model that sees images"),
    bad(SEES, "logprobs=full", says="logprobs= … has no closed-form estimate with a model that sees images"),
    bad(SEES, "attn_implementation=eager", says="attn_implementation= … has no closed-form estimate with a model that"),
    bad(SEES, "use_liger_kernel=true", says="use_liger_kernel= … has no closed-form estimate with a model that sees"),
    bad(SEES, "recipe=sft", says="recipe= … has no closed-form estimate with a model that sees images"),
    bad(SEES, "num_processes=2", "distributed_type=fsdp", says="distributed_type= … has no closed-form estimate with"),
    bad(SEES, "tuning=lora", "lora_target_modules=visual", says="lora_target_modules= … must be all-linear alone or"),
    model(
        architecture(model_type="qwen2_5_vl", vision_config={"depth": 0}),
        says="model= … depth=0: must be a whole number",
    ),
    model(
        architecture(model_type="qwen2_5_vl", vision_config={"hidden_size": 10, "num_heads": 3}),
        says="model= … num_heads=3: must divide the 10 values of a patch",
    ),
    bad(
        "config=verl",
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct",
        says="model= … has no closed-form estimate in a job",
    ),
)

WORDS = (
    bad(says="model= … must be a built-in name, a local path or a hub id"),
    bad(
        "model",
        sentences=2,
        says="argument= … is not of the form key=value … model= … must be a built-in name, a local path or a hub id",
    ),
    bad("=x", MODEL, says="= … is unknown."),
    bad(
        "--model",
        sentences=2,
        says="argument= … is not of the form key=value … model= … must be a built-in name, a local path or a hub id",
    ),
    bad("-x", MODEL, says="argument= … is not of the form key=value"),
    bad("--seed", MODEL, says="argument= … is not of the form key=value"),
    bad("--seed=x", MODEL, says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "--modle", "1", says="modle= … is unknown."),
    bad("", MODEL, says="argument= … is not of the form key=value"),
    bad("a=b=c", MODEL, says="a= … is unknown."),
    bad(MODEL, "seed", says="argument= … is not of the form key=value"),
    bad(MODEL, "format=xml", says="format= … must be one of table, json"),
    bad(MODEL, "format=", says="format= … must be one of table, json"),
    bad(MODEL, "modle=1", says="modle= … is unknown."),
    bad(
        MODEL,
        "gpu=a,b",
        sentences=2,
        says="gpu= … must be one of h100-80gb, h200-141gb, b200-180gb, a100-40gb, … gpu=",
    ),
    bad(MODEL, "gpu=", says="gpu= … must be one of h100-80gb, h200-141gb, b200-180gb, a100-40gb,"),
    bad(MODEL, "jobs=1", says="jobs= … is an option of a sweep; an estimate runs nothing"),
    bad(
        MODEL,
        "num_generations=1,2,",
        says="num_generations= … because it has an empty part",
    ),
    bad(
        MODEL,
        "num_generations=" + "1," * 100_000 + "1",
        says="num_generations= … has 100,001 values, and at most 100,000 are allowed",
    ),
    bad(
        MODEL,
        "steps=" + ",".join(map(str, range(1, 402))),
        "seed=" + ",".join(map(str, range(400))),
        says="points= … 401 steps x 400 seed are more points than the 100,000 of one grid",
    ),
    bad("\udce4=1", MODEL, says="is unknown."),
    bad("\x1b[31m=1", MODEL, says="is unknown."),
    bad("x" * 5000 + "=1", MODEL, says="is unknown."),
)

VALUES = (
    bad(MODEL, "num_generations=[[", says="num_generations= … cannot be read as a value, because it has an empty part"),
    bad(MODEL, "seed=2020-13-45", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=2020-01-01", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=0x_", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=0x" + "f" * 5000, says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=" + "9" * 5000, says="seed= … because it has a number of more than 1000 digits"),
    bad(MODEL, "seed=1" + ":1" * 20_000, says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=99999999999999999999", says="seed= … must be a whole number of at most 4294967295"),
    bad(MODEL, "seed=" + "[" * 2000, says="seed= … cannot be read as a value, because it has values that are nested"),
    bad(MODEL, "seed=" + "{a: " * 300, says="seed= … cannot be read as a value, because it has values that are nested"),
    bad(
        MODEL,
        "seed=" + "- " * 300 + "a",
        says="seed= … must be a whole number of at least 0",
    ),
    bad(MODEL, "seed=&a [*a]", says="seed= … cannot be read as a value, because it has '[' within a text"),
    bad(MODEL, "seed=*a", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=a: b: c", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed={[1]: 2}", says="seed= … cannot be read as a value, because it has an empty part"),
    bad(MODEL, "seed={{a: 1}: 2}", says="seed= … cannot be read as a value, because it has an empty part"),
    bad(MODEL, "seed={a: 1, a: 2}", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed={<<: 1}", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=<<", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed==", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=? a", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=- a", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=!!set {a}", says="seed= … cannot be read as a value, because it has '{' within a text"),
    bad(MODEL, "seed=!!timestamp x", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=!!int", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=!!int x", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=!!float x", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=!!bool x", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=!!binary x", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=!!map x", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=!!python/object:os.system x", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=%TAG", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=\x00", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=\x07", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=\udce4", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed='", says="seed= … cannot be read as a value, because it has a quote (') that is not closed"),
    bad(MODEL, 'seed="\\q"', says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=1.5", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=-1", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=true", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=1e999", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "seed=.inf", says="seed= … must be a whole number of at least 0"),
    bad(MODEL, "beta=.nan", says="beta= … must be a number of at least 0"),
    bad(MODEL, "beta=-.inf", says="beta= … must be a number of at least 0"),
    bad(MODEL, "beta=1e400", says="beta= … must be a number of at most 1e+15"),
    bad(MODEL, "beta=-0.1", says="beta= … must be a number of at least 0"),
    bad(MODEL, "beta=x", says="beta= … must be a number of at least 0"),
    bad(MODEL, "bf16=1", says="bf16= … must be true or false"),
    bad(MODEL, "tuning=[lora]", says="tuning= … must be one of full, lora, qlora"),
    bad(MODEL, "tuning=LORA", says="tuning= … must be one of full, lora, qlora"),
    bad(MODEL, "optim={a: b}", says="optim= … must be one of adamw_torch_fused, adamw_torch, adamw_8bit,"),
    bad(
        MODEL,
        "lora_target_modules=[]",
        "tuning=lora",
        says="lora_target_modules= … must be all-linear or a list of module names such as [q_proj,v_proj]",
    ),
    bad(
        MODEL,
        "lora_target_modules=[1]",
        "tuning=lora",
        says="lora_target_modules= … must be all-linear or a list of module names such as [q_proj,v_proj]",
    ),
    bad(
        MODEL,
        "lora_target_modules=[q_prj]",
        "tuning=lora",
        says="lora_target_modules= … must be all-linear alone or names among q_proj, k_proj, v_proj,",
    ),
    bad(MODEL, "alloc_conf=x", says="alloc_conf= … must be empty or PYTORCH_ALLOC_CONF's key:value,key:value"),
    bad(MODEL, "alloc_conf=[1]", says="alloc_conf= … must be empty or PYTORCH_ALLOC_CONF's key:value,key:value"),
    bad(MODEL, "steps=0", says="steps= … must be a whole number of at least 1"),
    bad(MODEL, "num_generations=3", says="num_generations= … must divide the completions generated at once,"),
    bad(MODEL, "tuning=lora", "lora_dropout=1", says="lora_dropout= … must be less than 1"),
    bad(MODEL, "tuning=lora", "lora_dropout=a", says="lora_dropout= … must be a number of at least 0"),
    bad(MODEL, "recipe=ppo", says="recipe= … must be one of grpo, rloo, sft"),
    bad(MODEL, "recipe=sft", "num_generations=8", says="num_generations= … has no meaning with recipe=sft"),
    bad(MODEL, "backend=gpu", says="backend= … must be one of auto, cuda, emulated, simulated, cpu"),
    bad(
        MODEL, "attn_implementation=flash", says="attn_implementation= … must be one of sdpa, flash_attention_2, eager"
    ),
)

MODELS = (
    bad("model=", says="model= … must be a built-in name, a local path or a hub id"),
    bad("model= ", says="model= … must be a built-in name, a local path or a hub id"),
    bad("model=null", says="model= … must be a built-in name, a local path or a hub id"),
    bad("model=[a]", says="model= … must be a built-in name, a local path or a hub id"),
    bad("model=1", says="model= … must be a built-in name, a local path or a hub id"),
    bad("model=true", says="model= … must be a built-in name, a local path or a hub id"),
    bad("model=tinyy", says="model= … must be a built-in"),
    bad("model=.", says="model= … there is no file config.json"),
    bad("model=~nosuchuser", says="model= … cannot be read"),
    bad("model=~nosuchuser/x", says="model= … cannot be read"),
    bad("model=" + LONG, says="model= … cannot be read"),
    bad("model=/" + LONG, says="model= … cannot be read"),
    bad("model=" + DEEP_PATH, says="model= … cannot be read"),
    bad("model=" + "a" * 50_000, says="model= … cannot be read"),
    bad("model=a\nb", says="model= … must be a built-in"),
    bad("model=\u202ea", says="model= … must be a built-in"),
    bad("model=/dev/null", says="model= … /dev/null is not a regular file"),
    bad("model=/dev/zero", says="model= … /dev/zero is not a regular file"),
    bad("model=/proc/self/mem", says="model= … /proc/self/mem cannot be read as JSON"),
    bad("model=/nowhere/at/all", says="model= … there is no file /nowhere/at/all"),
    bad("model=loop", files={"loop": Special.LOOP}, says="model= … cannot be read"),
    bad("model=./loop", files={"loop": Special.LOOP}, says="model= … cannot be read"),
    bad("model=./fifo", files={"fifo": Special.FIFO}, says="model= … fifo is not a regular file"),
    bad(
        "model=folder",
        files={"folder/config.json": Special.FIFO},
        says="model= … folder/config.json is not a regular file",
    ),
    bad(
        "model=folder",
        files={"folder/config.json": Special.FOLDER},
        says="model= … there is no file folder/config.json",
    ),
    bad(
        "model=folder",
        files={"folder/config.json": Special.ZERO},
        says="model= … folder/config.json is not a regular file",
    ),
    model("", says="model= … config.json cannot be read as"),
    model("{", says="model= … config.json cannot be read as"),
    model("[1]", says="model= … config.json holds no JSON object"),
    model("1", says="model= … config.json holds no JSON object"),
    model("null", says="model= … config.json holds no JSON object"),
    model(b"\xff\xfe", says="model= … config.json cannot be read as"),
    model(b"\x00" * 100, says="model= … config.json cannot be read as"),
    model("[" * 100_000, says="model= … config.json has values that are nested more than 64 deep"),
    model('{"a":' * 100 + "1" + "}" * 100, says="model= … config.json has values that are nested more than 64 deep"),
    model('{"hidden_size": ' + "9" * 5000 + "}", says="model= … config.json cannot be read as"),
    model('"' + "x" * 11_000_000 + '"', says="model= … config.json cannot be read as JSON"),
    model('{"a": 1, "a": 2}', says="model= … config.json has the key 'a' twice"),
    model("{}", says="model= … must be a decoder-only language model, but its config.json has no"),
    model(
        '{"model_type": "llama", "hidden_size": "x"}',
        says="model= … must be a decoder-only language model, but its config.json has no",
    ),
    model('{"text_config": []}', says="model= … must be a decoder-only language model, but its config.json has no"),
    model(
        architecture(hidden_size=float("nan")),
        says="model= … must be a decoder-only language model, but its config.json describes",
    ),
    model(
        architecture(model_type=["llama"]),
        says="model= … must be a decoder-only language model, but its config.json describes",
    ),
    model(
        architecture(model_type="llama", hidden_size=-8),
        says="model= … must be a decoder-only language model, but its config.json cannot be",
    ),
    model(
        architecture(model_type="llama", num_hidden_layers=1000000),
        says="model= … must be a decoder-only language model, but its config.json cannot be",
    ),
    model(
        architecture(model_type="llama", num_attention_heads=0),
        says="model= … must be a decoder-only language model, but its config.json cannot be",
    ),
    model(
        architecture(model_type="llama", num_attention_heads=True),
        says="model= … must be a decoder-only language model, but its config.json cannot be",
    ),
    model(
        architecture(model_type="t5", is_encoder_decoder=True),
        says="model= … must be a decoder-only language model, but its config.json says",
    ),
)

CONFIGS = (
    bad("config=", says="config= … cannot be read"),
    bad("config=nosuch.yaml", says="config= … cannot be read"),
    bad("config=/", says="config= … cannot be read"),
    bad("config=~nosuchuser/x.yaml", says="config= … cannot be read"),
    bad("config=" + LONG, says="config= … cannot be read"),
    bad("config=/dev/zero", says="config= … cannot be read"),
    bad("config=a\x00b", says="config= … cannot be read"),
    bad("config=loop", files={"loop": Special.LOOP}, says="config= … cannot be read"),
    config(Special.FIFO, says="config= … cannot be read"),
    config(Special.ZERO, says="config= … cannot be read"),
    config(Special.FOLDER, says="config= … cannot be read"),
    config("", says="config= … contains no keys with values"),
    config("a: [", says="config= … is not valid"),
    config("- a", says="config= … contains no keys with values"),
    config("text", says="config= … contains no keys with values"),
    config(b"\xff\xfe\x00", says="config= … is not valid"),
    config(b"\xff", says="config= … is not valid"),
    config("a: 2020-13-45", says="config= … is not valid"),
    config("a: !!timestamp 5", says="config= … is not valid YAML"),
    config("a: !!python/object/apply:os.system [ls]", says="config= … is not valid"),
    config(BOMB, says="config= … has more than 100,000 values"),
    config("&a [*a]", says="config= … contains itself, by its alias *a"),
    config("a: &a {b: *a}", says="config= … contains itself, by its alias *a"),
    config("actor_rollout_ref: &a {b: *a}", says="config= … contains itself, by its alias *a"),
    config("[" * 5000, says="config= … has values that are nested more than 64 deep"),
    config("- " * 3000, says="config= … has values that are nested more than 64 deep"),
    config("{[1]: 2}", says="config= … is not valid"),
    config("1: 2", says="config= … has 1 of 1 keys that trl does not have (1)"),
    config("null: null", says="config= … has 1 of 1 keys that trl does not have (None)"),
    config("model_name_or_path: tiny\nfinetuning_type: lora", says="do_train= … is not true, so LLaMA-Factory"),
    config("? {a: 1}\n: 2", says="config= … is not valid"),
    config("seed: 1\nseed: 2", says="config= … has the key 'seed' twice, in lines 1 and 2"),
    config("---\nseed: 1\n---\nseed: 2", says="config= … has several YAML documents, and one is allowed"),
    config("a: \x07", says="config= … is not valid"),
    config("a: '" + "x" * 2_000_000 + "'", says="config= … cannot be read"),
    config("a: [" + "1," * 100_001 + "]", says="config= … has more than 100,000 values"),
    config("seed: " + "9" * 5000, says="config= … is not valid YAML"),
    config("seed: 1" + ":1" * 100_000, says="config= … is not valid YAML"),
    config("model_name_or_path: {a: b}", says="model= … must be a built-in name, a local path or a hub id"),
    bad(
        "config=f.yaml",
        "strict=true",
        files={"f.yaml": "model_name_or_path: tiny\nlearning_rat: 1"},
        says="learning_rat= … is unknown in trl's arguments, which strict=true refuses",
    ),
    bad(MODEL, "strict=perhaps", says="strict="),
    config("model_name_or_path: tiny\nfsdp: {[a]: 1}", says="config= … is not valid"),
    config(
        "model_name_or_path: tiny\ntorch_compile: !!set {a}",
        says="torch_compile= … changes memory in a way that has no formula; only false",
    ),
    config("model_name_or_path: tiny\nbf16: 2020-01-01", says="bf16= … must be true or false"),
    config("model_name_or_path: tiny\nseed: !!binary aGVsbG8=", says="seed= … must be a whole number of at least 0"),
    config(
        "model_name_or_path: tiny\ngeneration_batch_size: 7",
        says="generation_batch_size= … must be a multiple of per_device_train_batch_size=8",
    ),
    config(
        "model_name_or_path: tiny\nmodel_init_kwargs: {dtype: {a: b}}",
        says="dtype= … must be one of bfloat16, float16, float32",
    ),
    config(
        "actor_rollout_ref: 1",
        says="actor_rollout_ref.model.path= … must be a built-in name, a local path or a hub id",
    ),
    config(
        "actor_rollout_ref: [1]",
        says="actor_rollout_ref.model.path= … must be a built-in name, a local path or a hub id",
    ),
    config(
        "actor_rollout_ref:\n",
        says="actor_rollout_ref.model.path= … must be a built-in name, a local path or a hub id",
    ),
    config(
        "actor_rollout_ref: {model: {path: [1]}}",
        says="actor_rollout_ref.model.path= … must be a built-in name, a local path or a hub id",
    ),
    config(
        "actor_rollout_ref: {1: {2: 3}}",
        says="actor_rollout_ref.model.path= … must be a built-in name, a local path or a hub id",
    ),
    config(
        "actor_rollout_ref: {model: {path: tiny}}\ntrainer: {nnodes: 0}",
        says="trainer.nnodes= … must be a whole number of at least 1",
    ),
    config(
        "actor_rollout_ref: {model: {path: tiny}}\ntrainer: {nnodes: 99999999999}",
        says="trainer.nnodes= … must be a whole number of at most 2147483647",
    ),
    config(
        "actor_rollout_ref: {model: {path: tiny, target_modules: 7}, rollout: {gpu_memory_utilization: 2}}",
        says="actor_rollout_ref.rollout.gpu_memory_utilization= … must be above 0 and at most 1",
    ),
)

FILES = (
    bad("config=train.py", files={"train.py": b"\xff"}, says="config= … is not valid Python"),
    bad("config=train.py", files={"train.py": Special.FIFO}, says="config= … cannot be read"),
    bad(
        MODEL,
        "config=a.py",
        files={"a.py": "print(1)"},
        says="config= … calls none of GRPOConfig, RLOOConfig, SFTConfig, DPOConfig",
    ),
    bad(
        "config=a.json",
        files={"a.json": '{"peft_type": "LORA", "r": [1]}'},
        sentences=2,
        says="model= … must be a built-in name … lora_rank= … must be a whole number",
    ),
    bad(
        "config=a.yaml",
        "config=b.yaml",
        files={"a.yaml": "actor_rollout_ref: {}", "b.yaml": "seed: 1"},
        says="config= … is a configuration of verl, which is not read with files of trl",
    ),
    bad(
        "config=a.yaml",
        "config=b.yaml",
        files={"a.yaml": "model_name_or_path: tiny\nseed: 2", "b.yaml": "seed: 1"},
        says="seed= … is 2 in a.yaml and 1 in b.yaml",
    ),
    bad(
        MODEL,
        "config=a.yaml",
        files={"a.yaml": "distributed_type: [FSDP]\nfsdp_config: 1"},
        says="distributed_type= … is no training on NVIDIA GPUs",
    ),
    bad(
        "config=run.sh",
        files={"run.sh": "X=aaaaaaaa\n" + "X=$X$X\n" * 60 + f"{_VERL} a=$X"},
        says="config= … takes too long to read, because its variables or its branches multiply",
    ),
    bad("config=run.sh", files={"run.sh": _VERL + "\n" * 300_000}, says="config= … has more than 262,144 characters"),
    bad(
        "config=run.sh",
        files={"run.sh": _VERL + "\n" + "if a; then\n" * 9000},
        says="config= … nested more than 60 deep",
    ),
    bad("config=run.sh", files={"run.sh": f"{_VERL} model_engine=veomni"}, says="model_engine= … is an engine of verl"),
    bad(
        "config=run.sh",
        files={"run.sh": f"N=4\n[ -d /data ] && N=8\n{_VERL} trainer.nnodes=$N"},
        says="trainer.nnodes= … is 8 or 4 in run.sh",
    ),
    bad(
        "config=run.sh",
        files={"run.sh": f"{_VERL} --config-name=mine"},
        says="--config-name= … is a configuration of its own",
    ),
    bad(
        "config=verl",
        "actor_rollout_ref.model.path=qwen2.5-7b",
        "model_engine=[",
        says="model_engine= … cannot be read as a value",
    ),
    bad("config=run.sh", files={"run.sh": "echo"}, says="config= … starts no training that is known"),
    bad(
        "config=run.sh",
        files={"run.sh": "swift app"},
        says="config= … runs ms-swift (swift app), and this way to start it is not read",
    ),
    bad("config=a.toml", files={"a.toml": "a = ["}, says="config= … is not valid TOML"),
    bad("config=a.toml", files={"a.toml": "a = " + "[" * 5000}, says="config= … has values that are nested more than"),
    bad("config=a.toml", files={"a.toml": b"\xff"}, says="config= … is not valid TOML"),
    bad("config=a.toml", files={"a.toml": "a = 1"}, says="config= … is TOML, and no program whose files are read"),
    bad("config=a.ipynb", files={"a.ipynb": "{"}, says="config= … cannot be read as JSON"),
    bad("config=a.ipynb", files={"a.ipynb": '{"cells": [{"cell_type": "code", "source": 3}]}'}, says="is a notebook"),
    bad("config=a.ipynb", files={"a.ipynb": '{"cells": 5}'}, says="config= … is a notebook without code"),
    bad("config=run.sh", files={"run.sh": "trl bco --model_name_or_path tiny"}, says="config= … has no recipe here"),
    bad(
        "config=run.sh",
        files={"run.sh": "trl grop --bf16"},
        says="config= … runs trl grop, and trl has no such command",
    ),
    bad(
        "config=run.sh",
        files={"run.sh": "trl grpo --model_name_or_path $MODEL"},
        says="model= … is the model in run.sh, which does not say what it is",
    ),
    bad(
        "config=run.sh",
        files={"run.sh": "trl grpo --config missing.yaml"},
        says="config= … is the recipe of trl grpo, and there is no such file here",
    ),
    bad(
        "config=run.sh",
        files={"run.sh": "trl grpo --config a.yaml", "a.yaml": "- 1"},
        says="config= … contains no keys with values",
    ),
    bad(
        "config=run.sh",
        files={"run.sh": "trl sft --config a.yaml\ntrl grpo --config b.yaml"},
        says="config= … starts 2 trainings",
    ),
    bad(MODEL, "--", says="launch= … must be a command"),
    bad("--", "ls", "-l", says="launch= … starts nothing that is known"),
    bad("--", "trl", says="launch= … starts nothing that is known"),
    bad("--", "trl", "env", says="launch= … runs trl env, which trains nothing"),
    bad("--", "trl", "fly", says="launch= … runs trl fly, and trl has no such command"),
    bad("launch=trl grpo '", says="launch= … is not a command (no closing quotation)"),
    bad(
        "--",
        "swift",
        "rlhf",
        "--model",
        "tiny",
        says="max_length= … is absent, and then ms-swift cuts rows at the long",
    ),
    bad(
        *("--", "swift", "rlhf", "--rlhf_type", "cpo", "--model", "tiny"),
        says="rlhf_type= … is a trainer of ms-swift 4.6 that is not read",
    ),
    bad(
        *("config=t.py", "tuning=full"),
        files={"t.py": "from trl import GRPOConfig\ndef f(): return f()\nGRPOConfig(num_generations=f())"},
        says="model= … must be a built-in name",
    ),
    bad(
        MODEL,
        "config=a.yaml",
        files={
            "a.yaml": "grpo: {num_generations: 8, beta: 0}\nours: {batch: 1, lora_size: 2, model_kind: 3, max_len: 4}"
        },
        says="config= … has 4 of 6 keys that may change memory by names that trl does not have",
    ),
    bad("config=a.ipynb", files={"a.ipynb": '{"cells": []}'}, says="config= … is a notebook without code"),
    bad("config=run.sh", files={"run.sh": b"\xff"}, says="config= … is not valid text"),
    bad("config=run.sh", files={"run.sh": Special.ZERO}, says="config= … cannot be read"),
    bad(
        MODEL,
        "config=a.json",
        files={"a.json": '{"zero_optimization": [], "train_micro_batch_size_per_gpu": {"a": 1}}'},
        says="per_device_train_batch_size= … must be a whole number of at least 1",
    ),
)
"""Files that stand next to a recipe, and scripts."""

CASES = FILES + WITHOUT_KEY + HOST + IMAGES + WORDS + VALUES + MODELS + CONFIGS
