"""Scripts that train with trl are read without running them."""

import json
import textwrap

import pytest

from profiler.domain.errors import EXIT_OK, EXIT_USAGE, UsageError
from profiler.domain.trials.recipe import Recipe
from profiler.estimate.main import answer, main

SCRIPT = """
    import torch
    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    from trl import GRPOConfig, GRPOTrainer

    MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
    ROWS = 2 * 4
    prompt: int = 512
    raise SystemExit("this script must not run")

    def main():
        bnb = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
        )
        model = AutoModelForCausalLM.from_pretrained(
            MODEL, torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2", quantization_config=bnb
        )
        args = GRPOConfig(
            output_dir=f"out/{MODEL}",
            per_device_train_batch_size=ROWS,
            num_generations=8,
            max_completion_length=1024 - prompt,
            gradient_accumulation_steps=GRADIENTS,
            fp16=is_old(),
            gradient_checkpointing=True,
            beta=-0.0,
        )
        lora = LoraConfig(r=64, target_modules=["q_proj", "k_proj"], task_type="CAUSAL_LM")
        GRPOTrainer(model=model, reward_funcs=[good, "org/reward-7b"], args=args, peft_config=lora).train()

    if __name__ == "__main__":
        GRADIENTS = 3
        GRADIENTS = 4
        main()
"""


@pytest.fixture
def script(tmp_path):
    """Write a script and return the word that names it."""

    def write(text):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        return f"config={path}"

    return write


def _found(*words):
    return json.loads(answer([*words, "trl=1.16", "format=json"]))


def test_literals_of_the_calls_are_read(script):
    trial = _found(script(SCRIPT))["trial"]
    assert (trial["model"], trial["tuning"], trial["dtype"]) == ("qwen2.5-1.5b", "qlora", "bfloat16")
    assert (trial["lora_rank"], trial["lora_alpha"]) == (64, 8)
    assert trial["lora_target_modules"] == ["q_proj", "k_proj"]
    assert (trial["per_device_train_batch_size"], trial["max_completion_length"]) == (8, 512)
    assert trial["attn_implementation"] == "flash_attention_2"


def test_what_is_no_literal_is_named_as_assumed(script):
    assumed, missing = _found(script(SCRIPT))["notes"]
    assert "gradient_accumulation_steps=1 (line 25 of train.py has no literal)" in assumed
    assert "fp16=false (line 26 of train.py has no literal)" in assumed
    assert "max_prompt_length=256 (give that of your data)" in assumed
    assert "the reward model org/reward-7b" in missing
    settled = _found(script(SCRIPT), "gradient_accumulation_steps=4")
    assert settled["trial"]["gradient_accumulation_steps"] == 4
    assert "gradient_accumulation_steps" not in settled["notes"][0]


@pytest.mark.parametrize(
    "bound",
    [
        "for ROWS in (2, 4): pass",
        "import numpy as ROWS",
        "def ROWS(): pass",
        "ROWS += 1",
        "def f():\n    global ROWS",
        "with open('x') as ROWS: pass",
    ],
)
def test_a_name_that_is_bound_twice_is_no_literal(script, bound):
    text = f"ROWS = 2\n{bound}\nGRPOConfig(per_device_train_batch_size=ROWS)\nGRPOTrainer('Qwen/Qwen2.5-0.5B')\n"
    found = _found(script(text))
    assert found["trial"]["per_device_train_batch_size"] == 8
    assert "per_device_train_batch_size=8 (line" in found["notes"][0]


def test_a_name_of_a_condition_is_no_literal(script):
    text = "if large:\n    ROWS = 2\nGRPOConfig(per_device_train_batch_size=ROWS)\nGRPOTrainer('Qwen/Qwen2.5-0.5B')\n"
    assert _found(script(text))["trial"]["per_device_train_batch_size"] == 8


def test_a_dictionary_of_arguments_is_read_where_it_is_literal(script):
    text = """
        args = dict(num_generations=4, max_completion_length=100)
        GRPOConfig(**args, **others, model_init_kwargs={"torch_dtype": "bfloat16"})
        GRPOTrainer(model="Qwen/Qwen2.5-0.5B")
    """
    found = _found(script(text))
    trial = found["trial"]
    assert (trial["num_generations"], trial["max_completion_length"], trial["dtype"]) == (4, 100, "bfloat16")
    assert "trl's defaults for what ** adds to GRPOConfig, line 3 of train.py" in found["notes"][0]


def test_the_class_names_the_recipe(script):
    found = _found(script("SFTConfig(output_dir='x')\nSFTTrainer(model='Qwen/Qwen2.5-0.5B')\n"))
    assert (found["trial"]["recipe"], found["trial"]["max_length"]) == ("sft", 1024)


def test_a_model_without_a_type_has_that_of_its_checkpoint(script):
    text = "GRPOConfig()\nm = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\nGRPOTrainer(model=m)\n"
    found = _found(script(text))
    assert found["trial"]["dtype"] == "bfloat16"
    assert "dtype=bfloat16 (auto: the type of the checkpoint)" in found["notes"][0]


def test_a_rank_that_is_no_literal_is_not_peft_s_default(script):
    text = "LoraConfig(r=rank(), target_modules=modules)\nGRPOConfig()\nGRPOTrainer('Qwen/Qwen2.5-0.5B')\n"
    found = _found(script(text))
    assert (found["trial"]["tuning"], found["trial"]["lora_rank"]) == ("lora", 16)
    assert "lora_rank=16 (line 1" in found["notes"][0]
    assert "lora_target_modules=[q_proj,v_proj] (line 1" in found["notes"][0]


def test_a_script_and_a_recipe_are_read_together(script, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_completion_length: 64\n")
    trial = _found(script("GRPOConfig(num_generations=4)\n"), f"config={recipe}")["trial"]
    assert (trial["num_generations"], trial["max_completion_length"]) == (4, 64)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print(1)\n", "calls none of GRPOConfig, RLOOConfig, SFTConfig, DPOConfig"),
        ("CPOConfig(beta=0.1)\n", "calls CPOConfig, whose trainer has no recipe here; the recipes"),
        ("AsyncGRPOConfig()\n", "has no recipe here, because it packs completions into rows of token_budget tokens"),
        ("GRPOConfig()\nSFTConfig()\n", "trains by grpo and sft"),
        ("FastVisionModel.from_pretrained('x')\nGRPOConfig()\n", "Unsloth's FastVisionModel"),
        ("FastLanguageModel.from_pretrained('x')\nGRPOConfig()\n", "makes no adapter by get_peft_model"),
        ("GRPOConfig(num_generations=2)\nGRPOConfig(num_generations=4)\n", "is 2 and 4 in train.py"),
        ("GRPOConfig(\n", "is not valid Python"),
        ("x = " + "(" * 5000 + ")" * 5000, "is not valid Python"),
        ("x = " + "-" * 200_000 + "1", "nested too deep"),
        ("GRPOConfig()\x00", "is not valid Python"),
    ],
)
def test_a_script_without_an_answer_is_refused_by_name(script, capsys, text, said):
    assert main([script(text), "model=tiny"]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_long_sums_end_as_no_literal(script):
    text = f"GRPOConfig(num_generations={'+'.join(['1'] * 500)}, beta={'*'.join(['9'] * 60)})\nGRPOTrainer('tiny')\n"
    found = _found(script(text))
    assert "num_generations=8 (line 1" in found["notes"][0] and "beta=0.0 (line 1" in found["notes"][0]


OUTSIDE = """
    import argparse, os
    from trl import GRPOConfig, GRPOTrainer

    parser = argparse.ArgumentParser()
    parser.add_argument("--model-name", default="Qwen/Qwen2.5-1.5B-Instruct")
    parser.add_argument("-r", "--rows", type=int, default="8")
    parser.add_argument("--beta", type=float, required=True)
    parser.add_argument("--no-checkpointing", dest="checkpointing", action="store_false")
    parser.add_argument("--tokens", default=100)
    parser.add_argument("--tokens", default=200)
    options = parser.parse_args()
    GENERATIONS = int(os.environ.get("GENERATIONS", "8"))
    args = GRPOConfig(
        per_device_train_batch_size=options.rows,
        num_generations=GENERATIONS,
        gradient_accumulation_steps=int(os.getenv("STEPS", 2)),
        max_completion_length=options.tokens,
        beta=options.beta,
        gradient_checkpointing=options.checkpointing,
    )
    GRPOTrainer(model=options.model_name, reward_funcs=[good], args=args)
"""


def test_values_from_outside_have_the_scripts_own_defaults(script):
    found = json.loads(answer([script(OUTSIDE), "gpu=h100", "format=json"]))
    trial = found["trial"]
    assert (trial["model"], trial["per_device_train_batch_size"], trial["num_generations"]) == ("qwen2.5-1.5b", 8, 8)
    assert (trial["gradient_accumulation_steps"], trial["gradient_checkpointing"]) == (2, True)
    assumed = found["notes"][0]
    assert "model=Qwen/Qwen2.5-1.5B-Instruct (the default of --model-name in line 22 of train.py)" in assumed
    assert "per_device_train_batch_size=8 (the default of --rows in line 15 of train.py)" in assumed
    assert "num_generations=8 (the default of $GENERATIONS in line 16 of train.py)" in assumed
    # Two defaults, or none: as for what is no literal.
    assert "max_completion_length=512 (line 18 of train.py has no literal)" in assumed
    assert "beta=0.0 (line 19 of train.py has no literal)" in assumed
    stated = json.loads(answer([script(OUTSIDE), "gpu=h100", "num_generations=4", "format=json"]))
    assert "$GENERATIONS" not in stated["notes"][0]


@pytest.mark.parametrize(
    "expression",
    ['int("many")', 'int(os.environ["ROWS"])', 'os.environ.get("ROWS")', 'int("9" * 99)', "other.rows", "float([])"],
)
def test_what_has_no_default_is_no_literal(script, expression):
    text = f"""
        from trl import GRPOConfig, GRPOTrainer
        args = GRPOConfig(num_generations={expression})
        GRPOTrainer(model="Qwen/Qwen2.5-1.5B-Instruct", args=args)
    """
    found = json.loads(answer([script(text), "gpu=h100", "format=json"]))
    assert found["trial"]["num_generations"] == 8
    assert "num_generations=8 (line 3 of train.py has no literal)" in found["notes"][0]


BF16, F16 = "torch_dtype=torch.bfloat16", "torch_dtype=torch.float16"
LOADED = "AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B'"


@pytest.mark.parametrize(
    ("lines", "dtype"),
    [
        # What is loaded after the training does not train.
        (f"GRPOTrainer('Qwen/Qwen2.5-0.5B')\nmodel = {LOADED}, {F16})", "float32"),
        (f"GRPOTrainer(model=options.model_name_or_path)\nmerged = {LOADED}, {F16})", "float32"),
        (f"judge = {LOADED}, {F16})\nmodel = {LOADED}, {BF16})\nGRPOTrainer(model=model)", "bfloat16"),
        (f"judge = {LOADED}, {F16})\nmodel = {LOADED})\nGRPOTrainer(model=model)", "bfloat16"),
        (f"old = {LOADED}, {F16})\nm = {LOADED}, {BF16}) if a else {LOADED}, {BF16})\nGRPOTrainer(m)", "bfloat16"),
        (f"base = {LOADED}, {F16})\nmodel = get_peft_model(base, LoraConfig())\nGRPOTrainer(model)", "float16"),
        (f"model = {LOADED}, {F16}).to(torch.bfloat16)\nGRPOTrainer(model)", "bfloat16"),
        (f"model = {LOADED}, {BF16}).float()\nGRPOTrainer(model)", "float32"),
        (
            f"def load():\n    m = {LOADED}, {BF16})\n    return m, 1\nmodel, tok = load()\nGRPOTrainer(model)",
            "bfloat16",
        ),
        (f"class T:\n  def a(self): self.m = {LOADED}, {BF16})\n  def b(self): GRPOTrainer(self.m)", "bfloat16"),
        (
            f"x = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16\nGRPOTrainer({LOADED}, dtype=x))",
            "bfloat16",
        ),
        (
            f"m = {LOADED}, {F16})\nm = PeftModel.from_pretrained(m, 'a')\nm = m.merge_and_unload()\nGRPOTrainer(m)",
            "float16",
        ),
    ],
)
def test_the_type_is_that_of_the_load_that_reaches_the_trainer(script, lines, dtype):
    trial = _found(script(f"import torch\nGRPOConfig()\n{lines}\n"), "model=qwen2.5-0.5b")["trial"]
    assert trial["dtype"] == dtype


def test_arguments_of_the_config_do_not_reach_a_loaded_model(script):
    text = (
        f"model = {LOADED}, {BF16})\nGRPOConfig(model_init_kwargs={{'torch_dtype': 'float32'}})\nGRPOTrainer(model)\n"
    )
    assert _found(script(text))["trial"]["dtype"] == "bfloat16"


def test_two_loads_of_a_trainer_with_two_types_are_refused(script, capsys):
    text = f"GRPOConfig()\nif small:\n    m = {LOADED}, {F16})\nelse:\n    m = {LOADED}, {BF16})\nGRPOTrainer(m)\n"
    assert main([script(text)]) == EXIT_USAGE
    assert "dtype=bfloat16: is float16 and bfloat16 in train.py" in capsys.readouterr().err
    assert _found(script(text), "dtype=float16")["trial"]["dtype"] == "float16"


@pytest.mark.parametrize(
    "lines",
    [
        "GRPOTrainer('x', peft_config=build_lora(cfg))",
        "GRPOTrainer('x', peft_config=cfg.adapter if cfg.adapts else None)",
        f"model = get_peft_model({LOADED}), lora)\nGRPOTrainer(model)",
    ],
)
def test_an_adapter_that_the_file_does_not_make_is_asked_for(script, capsys, lines):
    assert main([script(f"GRPOConfig()\n{lines}\n"), "model=qwen2.5-0.5b"]) == EXIT_USAGE
    assert "tuning=null: is that of the adapter in line 2 of train.py" in capsys.readouterr().err
    assert _found(script(f"GRPOConfig()\n{lines}\n"), "model=qwen2.5-0.5b", "tuning=full")["trial"]["tuning"] == "full"


@pytest.mark.parametrize("lines", ["adapter = None\nGRPOTrainer('x', peft_config=adapter)", "GRPOTrainer('x')"])
def test_no_adapter_is_full_training(script, lines):
    assert _found(script(f"GRPOConfig()\n{lines}\n"), "model=qwen2.5-0.5b")["trial"]["tuning"] == "full"


@pytest.mark.parametrize(
    ("lines", "sizes"),
    [
        ("GRPOConfig(**values)", "per_device_train_batch_size, num_generations, max_completion_length"),
        (
            "GRPOConfig(per_device_train_batch_size=a.b, num_generations=a.g, max_completion_length=a.c, beta=0.0)",
            "per_device_train_batch_size, num_generations, max_completion_length",
        ),
        ("SFTConfig(**values, bf16=True)", "per_device_train_batch_size, max_length"),
    ],
)
def test_a_script_without_one_size_is_refused(script, capsys, lines, sizes):
    assert main([script(f"{lines}\n"), "model=qwen2.5-0.5b"]) == EXIT_USAGE
    assert f"config=train.py: takes every size from elsewhere ({sizes})" in capsys.readouterr().err
    found = _found(script(f"{lines}\n"), "model=qwen2.5-0.5b", "per_device_train_batch_size=4", "num_processes=2")
    assert found["trial"]["per_device_train_batch_size"] == 4


PARSER = """
    parser = {parser}
    script_args, training_args, model_args = parser.{parse}()
    {then}
    SFTTrainer(model=model_args.model_name_or_path, args=training_args, peft_config=get_peft_config(model_args))
"""


@pytest.mark.parametrize(
    ("parser", "parse"),
    [
        ("TrlParser((ScriptArguments, SFTConfig, ModelConfig))", "parse_args_and_config"),
        ("HfArgumentParser((ScriptArguments, TrainingArguments, ModelConfig))", "parse_args_into_dataclasses"),
        ("HfArgumentParser([ScriptArguments, SFTConfig, ModelConfig])", "parse_yaml_file"),
        ("ours.Parser(SFTConfig)", "parse_all"),
    ],
)
def test_what_comes_from_a_command_line_is_open(script, capsys, parser, parse):
    """Such a script alone says nothing of the job; its defaults are those of trl, which nobody trains with."""
    word = script(PARSER.format(parser=parser, parse=parse, then=""))
    assert main([word, "model=tiny"]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "takes every size from elsewhere (per_device_train_batch_size, max_length)" in line
    assert line.endswith("Give them, or the YAML or shell script that states them (config=FILE).")
    assert main([word, "model=tiny", "per_device_train_batch_size=2", "trl=1.16"]) == EXIT_OK
    said = capsys.readouterr()
    assert "Assumed, because the files take them from elsewhere: max_length, tuning." in said.err
    assert "max_length=1024 (" in " ".join(said.out.split())


def test_a_parser_gets_the_file_that_is_given_with_it(script, tmp_path):
    """Whatever of it the script reads counts, and no more: nothing hands on the type of the model."""
    text = PARSER.format(
        parser="TrlParser((ScriptArguments, SFTConfig, ModelConfig))", parse="parse_args_and_config", then=""
    )
    keys = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndtype: bfloat16\nuse_peft: true\nlora_r: 4\n"
    (tmp_path / "recipe.yaml").write_text(keys)
    answered = _found(script(text), f"config={tmp_path / 'recipe.yaml'}")
    trial = answered["trial"]
    assert (trial["tuning"], trial["lora_rank"], trial["max_length"], trial["dtype"]) == ("lora", 4, 1024, "float32")
    assert not any("elsewhere" in note or "command line" in note for note in answered["notes"])


@pytest.mark.parametrize(
    ("then", "rows", "said"),
    [
        ("args.per_device_train_batch_size = 4", 4, ""),
        (
            "if large():\n    args.per_device_train_batch_size = 4",
            2,
            "per_device_train_batch_size=2 (line 3 of train.py may change it)",
        ),
        ("if 1 == 1:\n    args.per_device_train_batch_size = 4", 4, ""),
        ("other.per_device_train_batch_size = 4", 2, ""),
    ],
)
def test_what_a_script_sets_later_wins(script, then, rows, said):
    made = "args = SFTConfig(per_device_train_batch_size=2, max_length=99)"
    answered = _found(script(f"{made}\n{then}\nSFTTrainer('Qwen/Qwen2.5-0.5B', args=args)\n"))
    assert answered["trial"]["per_device_train_batch_size"] == rows
    assert said in answered["notes"][0]
    with pytest.raises(UsageError, match=r"is set to what is not in the file \(line 2 of train.py\)"):
        _found(script(f"{made}\nargs.per_device_train_batch_size = rows()\nSFTTrainer('a/b', args=args)\n"))


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ("SFTTrainer(model=M, args=args, max_seq_length=512)", ("sft", 2, 512)),
        ("SFTTrainer(model=M, args=args)", ("sft", 2, 1024)),
        ("SFTTrainer(model=M)", ("sft", 8, 1024)),
    ],
)
def test_arguments_of_early_trainers_are_read(script, trainer, expected):
    made = "args = TrainingArguments(per_device_train_batch_size=2)\n" if "args=args" in trainer else ""
    trial = _found(script(f"M = 'Qwen/Qwen2.5-0.5B'\n{made}{trainer}\n"))["trial"]
    assert (trial["recipe"], trial["per_device_train_batch_size"], trial["max_length"]) == expected


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ("DPOTrainer(M, None, beta=0.2)", "beta=line 2: is an argument of DPOTrainer of trl before 0.16"),
        ("KTOTrainer(M, tokenizer=t)", "tokenizer=line 2: is an argument of KTOTrainer of trl before 0.16"),
        (
            "DPOTrainer(M, args=DPOConfig(max_prompt_length=99))",
            "max_prompt_length=set: is a key of trl 0.14 to 0.28, whose DPOTrainer is another one",
        ),
        ("KTOTrainer(M, args=KTOConfig(max_prompt_length=99))", "max_prompt_length=set: is a key of trl 0.14 to 0.26"),
    ],
)
def test_an_earlier_trainer_of_preferences_is_refused(script, capsys, trainer, said):
    """It makes the logits of all tokens, and the answer would be that of today's."""
    assert main([script(f"M = 'Qwen/Qwen2.5-0.5B'\n{trainer}\n")]) == EXIT_USAGE
    assert said in capsys.readouterr().err


def test_what_follows_the_training_changes_nothing(script):
    text = "M = 'Qwen/Qwen2.5-0.5B'\nSFTTrainer(M, args=SFTConfig(max_length=99)).train()\n"
    found = _found(script(text))
    tried = f"model = AutoModelForCausalLM.from_pretrained('out', {F16})\nM = 'out'\nSFTConfig(max_length=7)\n"
    assert _found(script(f"{text}{tried}")) == found and found["trial"]["max_length"] == 99


SET = """
parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=8)
args = parser.parse_args()
{then}
class CFG:
    TOKENS = 64
model = snapshot_download("Qwen/Qwen2.5-0.5B", cache_dir="models")
GRPOTrainer(model, args=GRPOConfig(per_device_train_batch_size=args.rows, max_completion_length=CFG.TOKENS))
"""


@pytest.mark.parametrize(
    ("then", "rows", "said"),
    [
        ("pass", 8, "(the default of --rows in"),
        ("args.rows = 32", 32, ""),
        ("args.rows = args.rows * 2", 16, ""),
        ("args.rows = fitted(args.rows)", 8, "(the default of args.rows, which line 5 may set, and --rows in"),
        ("if hurried():\n    args.rows = 32", 8, "(the default of args.rows, which line 6 may set, and --rows in"),
    ],
)
def test_what_is_set_on_parsed_arguments_counts(script, then, rows, said):
    found = _found(script(SET.format(then=then)), "trl=1.16")
    assert found["trial"]["per_device_train_batch_size"] == rows
    assert said in found["notes"][0]
    assert (found["trial"]["model"], found["trial"]["max_completion_length"]) == ("qwen2.5-0.5b", 64)


@pytest.mark.parametrize(("rank", "tuning"), [(0, "full"), (16, "lora")])
def test_an_adapter_of_no_rank_is_none(script, rank, tuning):
    made = f"R = {rank}\nmodel = {LOADED}, {BF16})\nif R > 0:\n    model = get_peft_model(model, LoraConfig(r=R))"
    assert (
        _found(script(f"{made}\nGRPOConfig(max_completion_length=9)\nGRPOTrainer(model)"))["trial"]["tuning"] == tuning
    )


def test_a_script_takes_what_its_own_modules_say(script, tmp_path, capsys):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "loading.py").write_text(
        "from pkg.names import NAME\nOTHER = 'x'\n"
        "def load(rank=8):\n    model = AutoModelForCausalLM.from_pretrained(NAME, torch_dtype=torch.bfloat16)\n"
        "    return get_peft_model(model, LoraConfig(r=rank))\n"
        "def judge():\n    return AutoModelForCausalLM.from_pretrained('tiny', torch_dtype=torch.float16)\n"
    )
    (tmp_path / "pkg" / "names.py").write_text("NAME = 'Qwen/Qwen2.5-0.5B'\n")
    text = "from pkg.loading import load\nmodel = load(rank=4)\nGRPOTrainer(model, args=GRPOConfig(beta=0.1))\n"
    trial = _found(script(f"import torch\n{text}"))["trial"]
    assert (trial["model"], trial["dtype"], trial["lora_rank"]) == ("qwen2.5-0.5b", "bfloat16", 4)
    (tmp_path / "pkg" / "loading.py").write_text("def load(rank=8):\n    return (\n")
    assert main([script(text)]) == EXIT_USAGE
    assert "model=null" in capsys.readouterr().err


def test_a_script_may_be_a_copy_of_trls_own(script, tmp_path):
    text = (
        "def make_parser(several=None):\n    types = (ScriptArguments, GRPOConfig, ModelConfig)\n"
        "    return TrlParser(types)\n"
        "made = make_parser()\nscript_args, training_args, model_args, _ = made.parse_args_and_config()\n"
        "GRPOTrainer(model=model_args.model_name_or_path, args=training_args)\n"
    )
    script(text)
    (tmp_path / "r.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\nnum_generations: 4\n")
    (tmp_path / "run.sh").write_text("accelerate launch --num_processes 2 train.py \\\n  --config r.yaml \\")
    trial = _found(f"config={tmp_path / 'run.sh'}")["trial"]
    assert (trial["model"], trial["num_generations"], trial["num_processes"]) == ("qwen2.5-0.5b", 4, 2)


def test_a_script_that_states_one_size_is_answered(script):
    found = _found(script("GRPOConfig(max_completion_length=99, **values)\n"), "model=qwen2.5-0.5b")
    assert found["trial"]["max_completion_length"] == 99
    assert "num_generations=8 (line 1 of train.py may state it by **)" in found["notes"][0]


def test_an_adapter_of_another_file_is_not_full_training(script, capsys):
    text = f"GRPOConfig()\nbase = {LOADED}, {BF16})\nGRPOTrainer(PeftModel.from_pretrained(base, 'adapter'))\n"
    assert main([script(text)]) == EXIT_USAGE
    assert "is that of the adapter which line 3 of train.py loads" in capsys.readouterr().err
    assert _found(script(text), "tuning=lora", "lora_rank=8")["trial"]["tuning"] == "lora"


def test_a_reward_of_a_script_is_a_model_without_a_slash(script):
    text = "GRPOConfig()\nGRPOTrainer('Qwen/Qwen2.5-0.5B', reward_funcs=[good, 'skywork-qwen3-8b'])\n"
    assert _found(script(text))["trial"]["reward_models"] == ["qwen3-8b"]


def test_deepspeed_inside_of_a_script_is_read(script):
    text = """
        GRPOConfig(deepspeed={"zero_optimization": {"stage": 3}}, model_init_kwargs={"dtype": "bfloat16"})
        GRPOTrainer('Qwen/Qwen2.5-0.5B')
    """
    assert _found(script(text), "num_processes=2")["trial"]["zero_stage"] == 3


@pytest.mark.parametrize(
    ("adapter", "reference", "is_refused"),
    [
        ("peft_config=LoraConfig(r=8)", "ref_model=other", True),
        ("peft_config=LoraConfig(r=8)", "ref_model=None", False),
        ("peft_config=LoraConfig(r=8)", "processing_class=text", False),
        ("callbacks=[]", "ref_model=other", False),
    ],
)
def test_a_reference_next_to_an_adapter_is_refused(script, capsys, adapter, reference, is_refused):
    text = f"""
        args = DPOConfig(max_length=512, per_device_train_batch_size=2)
        DPOTrainer("Qwen/Qwen2.5-0.5B", args=args, {reference}, {adapter}).train()
    """
    assert main([script(text)]) == (EXIT_USAGE if is_refused else EXIT_OK)
    said = capsys.readouterr()
    assert ("ref_model=line 3 of train.py: is a second model" in said.err) is is_refused
    assert ("pairs of" in said.out) is not is_refused


@pytest.mark.parametrize("recipe", Recipe)
def test_the_arguments_of_a_parser_name_the_recipe(script, recipe):
    text = f"""
        parser = TrlParser((ScriptArguments, {recipe.in_classes}Config, ModelConfig))
        script_args, training_args, model_args = parser.parse_args_and_config()
        trained_by(training_args)
    """
    assert _found(script(text), "model=tiny", "per_device_train_batch_size=8")["trial"]["recipe"] == recipe


def test_a_model_that_scores_rows_is_the_one_that_is_trained(script):
    text = """
        model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-0.5B", num_labels=1, dtype="float16")
        RewardTrainer(model=model, args=RewardConfig(max_length=256), train_dataset=pairs).train()
    """
    answered = _found(script(text))
    found = [answered["trial"][key] for key in ("recipe", "model", "dtype", "reward_models", "max_length")]
    assert found == ["reward", "qwen2.5-0.5b", "float16", None, 256]
    assert not any("reward model" in note for note in answered["notes"])


# Several trainings in one file

TWO = """from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
first = SFTConfig(per_device_train_batch_size=16, max_length=4096, bf16=True)
SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=first).train()
second = GRPOConfig(per_device_train_batch_size=4, num_generations=4, max_completion_length=64, optim="adamw_8bit")
GRPOTrainer(model="Qwen/Qwen2.5-1.5B", args=second, reward_funcs=score).train()
"""


def _cells(text):
    cells = [{"cell_type": "code", "source": line} for line in text.splitlines(keepends=True)]
    return json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {}})


@pytest.mark.parametrize("name", ["train.py", "train.ipynb"])
def test_one_of_two_trainings_is_answered_alone(tmp_path, name):
    def found(text, *words):
        path = tmp_path / name
        path.write_text(_cells(text) if name.endswith("ipynb") else text)
        return json.loads(answer([f"config={path}", "trl=1.16", "format=json", *words]))

    with pytest.raises(UsageError) as error:
        found(TWO)
    said = error.value.faults[0].sentence()
    assert "trains by sft and grpo, and one recipe is allowed" in said and "Give recipe=sft|grpo as well." in said
    lines = TWO.splitlines()
    for recipe, own in (("sft", lines[1:3]), ("grpo", lines[3:])):
        both, alone = found(TWO, f"recipe={recipe}"), found("\n".join([lines[0], *own]))
        assert both["trial"] == alone["trial"]
        assert f"the training of {name} by {recipe} (it also trains by" in both["notes"][0]


TWICE = """from trl import SFTConfig, SFTTrainer
SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=SFTConfig(max_length=4096, bf16=True)).train()
SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=SFTConfig(per_device_train_batch_size=2, bf16=True)).train()
"""


def test_two_trainings_of_a_recipe_are_never_mixed(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TWICE)
    with pytest.raises(UsageError) as error:
        answer([f"config={path}", "trl=1.16"])
    said = [fault.sentence() for fault in error.value.faults]
    assert said == [
        "max_length=4096: is of one training (line 2 of train.py) and not of another one (line 3 of train.py). "
        "Give max_length= as well, or keep one training in the file.",
        "per_device_train_batch_size=2: is of one training (line 3 of train.py) and not of another one (line 2 of "
        "train.py). Give per_device_train_batch_size= as well, or keep one training in the file.",
    ]
    words = [f"config={path}", "trl=1.16", "max_length=512", "per_device_train_batch_size=1", "format=json"]
    assert json.loads(answer(words))["trial"]["max_length"] == 512


def test_another_model_of_two_trainings_is_chosen_by_its_key(tmp_path):
    path = tmp_path / "train.py"
    second = TWICE.replace("per_device_train_batch_size=2", "max_length=4096")
    path.write_text(second.replace("0.5B", "1.5B", 1))
    with pytest.raises(UsageError) as error:
        answer([f"config={path}", "trl=1.16"])
    said = error.value.faults[0].sentence()
    assert said.startswith("model=") and "one value is allowed. Give model= as well" in said
    assert json.loads(answer([f"config={path}", "model=qwen2.5-1.5b", "format=json"]))["trial"]["max_length"] == 4096


def test_one_trainer_may_have_its_arguments_in_branches(tmp_path):
    path = tmp_path / "train.py"
    lines = ["from trl import SFTConfig, SFTTrainer", "if flag:", "    args = SFTConfig(max_length=64)", "else:"]
    lines += ["    args = SFTConfig(bf16=True)", 'SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args).train()']
    path.write_text("\n".join(lines))
    assert json.loads(answer([f"config={path}", "format=json"]))["trial"]["max_length"] == 64
