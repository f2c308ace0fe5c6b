"""Command lines, scripts, notebooks and own YAML: what each construct says."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from profiler.config.files.arguments import is_flag, typed
from profiler.config.files.foreign_formats import Format, Keys, foreign_part
from profiler.config.files.own_sections import FileKeys
from profiler.config.files.vocabulary import Vocabulary
from profiler.config.trl.argument_values import OTHER_TRAINERS
from profiler.domain.errors import EXIT_USAGE
from profiler.domain.trials.recipe import Recipe
from profiler.estimate.main import answer, main
from profiler.solve.main import main as solve

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
LINE = ["trl", "grpo", "--model_name_or_path", MODEL, "--num_generations", "4"]


def found(*words):
    options, end, line = words, (), ()
    if "--" in words:
        place = words.index("--")
        options, end, line = words[:place], ("--",), words[place + 1 :]
    return json.loads(answer([*options, "trl=1.16", "format=json", *end, *line]))


def refused(capsys, *words):
    assert main(list(words)) == EXIT_USAGE
    return capsys.readouterr().err


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_words_after_the_end_are_a_command(folder):
    trial = found("gpu=h100", "--", *LINE, "--use_peft", "--lora_target_modules", "q_proj", "k_proj", "--no_bf16")[
        "trial"
    ]
    assert (trial["model"], trial["num_generations"], trial["tuning"]) == ("qwen2.5-0.5b", 4, "lora")
    assert trial["lora_target_modules"] == ["q_proj", "k_proj"]
    assert found(f"launch={' '.join(LINE)}")["trial"] == found("--", *LINE)["trial"]


def test_every_command_reads_the_same_line(folder, capsys):
    assert solve(["gpu", "--", *LINE]) != EXIT_USAGE, capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "count", "stage"),
    [
        ("accelerate launch --num_processes 2 --use_deepspeed --zero_stage 3 grpo.py", 2, 3),
        ("accelerate launch --config_file two.yaml grpo.py", 4, 2),
        ("accelerate launch --config_file two.yaml --num_processes 8 grpo.py", 8, 2),
        ("torchrun --nproc_per_node=2 --nnodes=2 -m ours.grpo --deepspeed three.json", 4, 3),
        ("python -m torch.distributed.run --nproc-per-node 2 grpo.py", 2, None),
        ("deepspeed --include localhost:0,1 grpo.py --deepspeed three.json", 2, 3),
        ("python grpo.py --num_generations 2 --per_device_train_batch_size 2", 1, None),
        ("trl grpo --accelerate_config zero2", 8, 2),
        ("trl grpo --accelerate_config zero2 --num_processes 2", 2, 2),
        ("trl grpo --accelerate_config two.yaml", 4, 2),
    ],
)
def test_a_launcher_says_how_the_work_is_shared(folder, line, count, stage):
    (folder / "two.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {zero_stage: 2}\n", encoding="utf-8"
    )
    (folder / "three.json").write_text('{"zero_optimization": {"stage": 3}, "train_batch_size": "auto"}')
    sizes = ("--max_completion_length", "99")
    trial = found("dtype=bfloat16", "--", *line.split(), *sizes, "--model_name_or_path", MODEL)["trial"]
    assert (trial["num_processes"], trial.get("zero_stage")) == (count, stage)


def test_a_line_without_sizes_of_an_absent_script_is_refused(folder, capsys):
    line = ("accelerate", "launch", "grpo.py", "--model_name_or_path", MODEL, "--bf16")
    assert "config=the command: takes every size from elsewhere (per_device" in refused(capsys, "--", *line)
    read = found("per_device_train_batch_size=8", "--", *line)
    assert "num_generations=8 (grpo.py is not here)" in " ".join(read["notes"])


def test_arguments_win_over_the_recipe_that_they_name(folder):
    (folder / "r.yaml").write_text(f"model_name_or_path: {MODEL}\nnum_generations: 8\nmax_completion_length: 64\n")
    (folder / "run.sh").write_text('N=${N:-4}\nARGS=(--num_generations $N)\ntrl grpo --config r.yaml "${ARGS[@]}" $@\n')
    trial = found("config=run.sh")["trial"]
    assert (trial["num_generations"], trial["max_completion_length"]) == (4, 64)
    # The recipe may be given as well, from another folder: it is not read a second time.
    (folder / "elsewhere").mkdir()
    (folder / "r.yaml").rename(folder / "elsewhere" / "r.yaml")
    assert found("config=run.sh", "config=elsewhere/r.yaml")["trial"] == trial


def test_a_value_that_the_line_does_not_state_is_named(folder, capsys):
    (folder / "run.sh").write_text(f"trl grpo --model_name_or_path {MODEL} --max_completion_length $TOKENS\n")
    assert "max_completion_length=512 (run.sh has $TOKENS)" in found("config=run.sh")["notes"][0]


@pytest.mark.parametrize(
    "stated", ["--num_generations 4 $EXTRA", "--output_dir out $EXTRA", "$EXTRA --num_generations 4"]
)
def test_arguments_that_a_line_hides_are_named(folder, stated):
    (folder / "run.sh").write_text(f"trl grpo {stated} --model_name_or_path {MODEL}\n")
    text = answer(["config=run.sh", "trl=1.16"])
    assert "Not counted: what run.sh passes on as $EXTRA." in text
    shown = found("config=run.sh")["trial"]["num_generations"]
    assert shown == (8 if "output_dir" in stated else 4)


def test_an_own_argument_that_may_change_memory_is_refused(folder, capsys):
    line = ["torchrun", "train_grpo.py", "--model_name_or_path", MODEL, "--rank", "256"]
    assert "is --rank 256 of train_grpo.py, which is not here" in refused(capsys, "--", *line)


def test_the_script_of_a_line_is_read_with_its_arguments(folder):
    (folder / "train.py").write_text(
        f"""
import argparse
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", "-b", type=int, default=2)
parser.add_argument("--rank", type=int, default=8)
parser.add_argument("--lora", action="store_true")
parser.add_argument("--no-checkpointing", dest="checkpointing", action="store_false")
def main(args):
    peft = LoraConfig(r=args.rank) if args.lora else None
    config = GRPOConfig(per_device_train_batch_size=args.batch_size, num_generations=2,
                        gradient_checkpointing=args.checkpointing)
    GRPOTrainer(model="{MODEL}", args=config, peft_config=peft)
main(parser.parse_args())
"""
    )
    plain = found("config=train.py")
    assert (plain["trial"]["per_device_train_batch_size"], plain["trial"]["tuning"]) == (2, "full")
    assert "tuning=full (by --lora, line 11 of train.py makes no adapter)" in plain["notes"][0]
    line = ["python", "train.py", "--batch-size", "6", "--lora", "--rank", "32", "--no-checkpointing"]
    trial = found("--", *line)["trial"]
    assert (trial["per_device_train_batch_size"], trial["tuning"], trial["lora_rank"]) == (6, "lora", 32)
    assert trial["gradient_checkpointing"] is False


PARSED = f"""
from dataclasses import dataclass, field
import trl
from trl import GRPOTrainer, ModelConfig, TrlParser, get_peft_config
@dataclass
class Ours:
    tokens: int = field(default=96)
@dataclass
class Config(trl.GRPOConfig):
    num_generations: int = 2
if __name__ == "__main__":
    parser = TrlParser((Ours, Config, ModelConfig))
    ours, training_args, model_args = parser.parse_args_and_config()
    training_args.max_completion_length = ours.tokens
    GRPOTrainer(model=model_args.model_name_or_path or "{MODEL}", args=training_args,
                peft_config=get_peft_config(model_args))
"""


def test_a_parser_of_dataclasses_takes_a_lines_arguments(folder):
    (folder / "train.py").write_text(PARSED)
    (folder / "r.yaml").write_text(f"model_name_or_path: {MODEL}\nper_device_train_batch_size: 4\n")
    line = ["accelerate", "launch", "train.py", "--config", "r.yaml", "--use_peft", "--lora_r", "4", "--tokens", "32"]
    trial = found("--", *line)["trial"]
    assert (trial["model"], trial["num_generations"], trial["per_device_train_batch_size"]) == ("qwen2.5-0.5b", 2, 4)
    assert (trial["tuning"], trial["lora_rank"], trial["max_completion_length"]) == ("lora", 4, 32)


def test_an_adapter_that_the_script_does_not_make_does_not_count(folder):
    (folder / "train.py").write_text(PARSED.replace("peft_config=get_peft_config(model_args)", ""))
    answered = found("--", "python", "train.py", "--use_peft", "--model_name_or_path", MODEL)
    assert answered["trial"]["tuning"] == "full"
    assert "tuning=full (train.py does not use use_peft)" in answered["notes"][0]


LOADED_SO = f"""
from trl import GRPOConfig, GRPOTrainer, ModelConfig, get_peft_config, get_quantization_config
settings = ModelConfig(model_name_or_path="{MODEL}", torch_dtype="bfloat16", load_in_4bit=True, use_peft=True)
EXTRA
GRPOTrainer(model=settings.model_name_or_path, args=GRPOConfig(), peft_config=get_peft_config(settings))
"""


@pytest.mark.parametrize(
    ("extra", "tuning", "dtype"),
    [
        ("", "lora", "float32"),
        ("print(settings, f'{settings}')", "lora", "float32"),
        ("quantization = get_quantization_config(settings)", "qlora", "float32"),
        ("kind = settings.torch_dtype", "lora", "bfloat16"),
        ("kind = getattr(settings, 'dtype', None)", "lora", "bfloat16"),
        ("def f(settings):\n    return settings.load_in_4bit\nf(settings)", "qlora", "float32"),
        ("from ours import load\nmodel = load(settings)", "qlora", "bfloat16"),
        ("from ours import load\nmodel = load(model=settings)", "qlora", "bfloat16"),
        ("everything = [settings]", "qlora", "bfloat16"),
    ],
)
def test_a_model_config_counts_as_far_as_the_script_reads_it(folder, extra, tuning, dtype):
    """trl's trainers get none: a script that hands on the name and the adapter alone trains other weights."""
    (folder / "train.py").write_text(LOADED_SO.replace("EXTRA", extra))
    answered = found("config=train.py")
    assert (answered["trial"]["tuning"], answered["trial"]["dtype"]) == (tuning, dtype)
    unread = [*["torch_dtype=bfloat16"] * (dtype == "float32"), *["load_in_4bit=true"] * (tuning == "lora")]
    said = f"no effect of {', '.join(unread)}: train.py does not read them where it loads the model"
    assert (said in answered["notes"][0]) == bool(unread)


def test_a_parsed_model_config_counts_as_far_as_it_is_read(folder):
    (folder / "train.py").write_text(PARSED)
    words = ["--use_peft", "--dtype", "bfloat16", "--attn_implementation", "eager", "--model_name_or_path", MODEL]
    answered = found("--", "python", "train.py", *words)
    assert (answered["trial"]["dtype"], answered["trial"]["attn_implementation"]) == ("float32", "sdpa")
    assert "no effect of dtype=bfloat16, attn_implementation=eager" in answered["notes"][0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("def n():\n    return 4\nA = dict(num_generations=n())\nGRPOConfig(**A)", 4),
        ("def c(n=2):\n    return {'num_generations': n}\nGRPOConfig(**{**c(4), 'beta': 0.1})", 4),
        ("CFG = {'a': {'n': [4, 8]}}\nGRPOConfig(num_generations=CFG['a']['n'][0])", 4),
        ("CFG = {'n': 4}\nGRPOConfig(num_generations=CFG.get('n', 8))", 4),
        ("LARGE = False\nGRPOConfig(num_generations=8 if LARGE else 4)", 4),
        ("def n():\n    return n()\nGRPOConfig(num_generations=n())", None),
        ("def n():\n    if x:\n        return 2\n    return 4\nGRPOConfig(num_generations=n())", None),
    ],
)
def test_a_value_is_followed_within_the_file(folder, text, value):
    (folder / "train.py").write_text(
        f"from trl import GRPOConfig\n{text}\nM = 'Qwen'\nGRPOTrainer(f'{{M}}/Qwen2.5-0.5B')\n"
    )
    answered = found("config=train.py")
    assert answered["trial"]["model"] == "qwen2.5-0.5b"
    assert answered["trial"]["num_generations"] == (value or 8)
    assert ("has no literal" in answered["notes"][0]) == (value is None)


OWN_FILE = {
    "model": {"name": MODEL},
    "training": {"batch_size": 6, "rate": 1e-5},
    "sampling": {"group": 3, "max_completion_length": 64},
    "data": {"group": 9},
}


def with_own_file(folder, before, batch, group="3"):
    (folder / "job.yaml").write_text(yaml.safe_dump(OWN_FILE))
    (folder / "train.py").write_text(f"""
from trl import GRPOConfig, GRPOTrainer
{before}
    args = GRPOConfig(per_device_train_batch_size={batch}, num_generations={group})
    GRPOTrainer(model=model, args=args, reward_funcs=[good])
""")


@pytest.mark.parametrize(
    ("before", "batch"),
    [
        ("from settings import JOB\ndef main():", 'JOB["training"]["batch_size"]'),
        ("def main(job):", "int(job.training.batch_size)"),
        ("def main(training):", 'training["batch_size"]'),
        ("class Job:\n  def main(self):", "self.job.training.batch_size"),
        ("class Job:\n  def main(self):\n    training = self.job.training", 'training.get("batch_size", 2)'),
        ("def main(job):\n    wanted = job.training.batch_size", "wanted"),
        ("def main(job):", 'getattr(job.training, "batch_size", 2)'),
        ("import yaml\njob = yaml.safe_load(open(path))\ndef main():", "job['training'].get('batch_size')"),
        ("job = OmegaConf.merge(defaults, given)\ndef main():", "job.training.batch_size"),
    ],
)
def test_a_script_takes_values_from_the_file_given_with_it(folder, before, batch):
    with_own_file(folder, before, batch)
    read = found("config=train.py", "config=job.yaml")
    trial = read["trial"]
    assert (trial["per_device_train_batch_size"], trial["num_generations"]) == (6, 3)
    # What the script takes from elsewhere counts as without it.
    assert (trial["model"], trial["max_completion_length"]) == ("qwen2.5-0.5b", 64)
    text = " ".join(read["notes"])
    assert "job.yaml as train.py reads it (training.batch_size" in text
    assert "has no literal" not in text


@pytest.mark.parametrize(
    ("before", "adapter", "rank"),
    [
        ("from settings import JOB\ndef main():", '**OmegaConf.to_container(JOB["lora"], resolve=True)', 64),
        ("def main(job):", "**dict(job.lora, r=32)", 32),
        ("def main(job):", "**job.lora", 64),
        # What ** adds is not known, and the file states it.
        ("def main(job):", "**chosen(job.lora)", 64),
        ("def main(job):", "r=4, **chosen(job.lora)", 4),
    ],
)
def test_arguments_that_are_a_section_of_the_file_are_read(folder, before, adapter, rank):
    made = f"adapter = LoraConfig({adapter})\n    model = get_peft_model(model, adapter)"
    with_own_file(folder, f"{before}\n    {made}", "job.training.batch_size")
    (folder / "job.yaml").write_text(yaml.safe_dump({**OWN_FILE, "lora": {"r": 64, "target_modules": ["o_proj"]}}))
    trial = found("config=train.py", "config=job.yaml")["trial"]
    assert (trial["tuning"], trial["lora_rank"], trial["lora_target_modules"]) == ("lora", rank, ["o_proj"])


@pytest.mark.parametrize("whole", ["**job", "**dict(job)", "**dict(other, **job)"])
def test_a_value_that_may_be_any_section_adds_nothing(folder, whole):
    with_own_file(folder, f"def main(job):\n    SomeConfig({whole})", f"job.training.batch_size, {whole}")
    read = found("config=train.py", "config=job.yaml")
    assert "what ** adds to GRPOConfig" in " ".join(read["notes"])


def test_a_key_of_transformers_4_is_no_key_of_the_users_own(folder, capsys):
    content = {**OWN_FILE, "training": {"per_device_train_batch_size": 6, "group_by_length": True}}
    (folder / "grpo.yaml").write_text(yaml.safe_dump({**content, "sampling": {"num_generations": 3}, "data": {}}))
    trial = found("config=grpo.yaml", "recipe=grpo")["trial"]
    assert (trial["per_device_train_batch_size"], trial["max_completion_length"]) == (6, 512)


def test_an_adapter_that_the_file_alone_describes_is_counted(folder):
    with_own_file(folder, "def main(job):", "job.training.batch_size")
    sections = {"qlora": {"r": 32, "bias": "none"}, "quantization": {"load_in_4bit": True}}
    sections["quantization"] |= {"bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"}
    (folder / "job.yaml").write_text(yaml.safe_dump({**OWN_FILE, **sections}))
    trial = found("config=train.py", "config=job.yaml")["trial"]
    assert (trial["tuning"], trial["lora_rank"], trial["bnb_4bit_use_double_quant"]) == ("qlora", 32, True)


def test_a_section_that_the_script_reads_whole_is_settled(folder):
    with_own_file(folder, "def main(job):", "job.lora.batch")
    (folder / "job.yaml").write_text(yaml.safe_dump({**OWN_FILE, "training": {}, "lora": {"batch": 6}}))
    trial = found("config=train.py", "config=job.yaml")["trial"]
    assert (trial["tuning"], trial["per_device_train_batch_size"]) == ("full", 6)


@pytest.mark.parametrize("suffix", ["py", "sh", "yaml", "json"])
def test_a_file_may_begin_with_a_byte_order_mark(folder, suffix):
    text = {
        "py": f"from trl import SFTConfig, SFTTrainer\nSFTTrainer(model='{MODEL}', args=SFTConfig(max_length=96))",
        "sh": f"trl sft --model_name_or_path {MODEL} --max_length 96",
        "yaml": f"model_name_or_path: {MODEL}\nmax_length: 96\npacking: false\n",
        "json": json.dumps({"model_name_or_path": MODEL, "max_length": 96, "packing": False}),
    }[suffix]
    (folder / f"job.{suffix}").write_text(text, encoding="utf-8-sig")
    assert found(f"config=job.{suffix}", "recipe=sft")["trial"]["max_length"] == 96


def test_a_file_that_a_script_names_is_read(folder):
    with_own_file(folder, 'def main(path="job.yaml"):\n    job = load_job(path)', "job.training.batch_size")
    assert found("config=train.py")["trial"]["per_device_train_batch_size"] == 6


def test_what_a_script_states_wins_over_its_file(folder):
    with_own_file(folder, "from settings import JOB\ndef main():", 'JOB["training"]["batch_size"]')
    content = {**OWN_FILE, "sampling": {"num_generations": 2}}
    (folder / "job.yaml").write_text(yaml.safe_dump(content))
    assert found("config=train.py", "config=job.yaml")["trial"]["num_generations"] == 3


def test_sizes_that_no_file_states_are_said_first(folder, capsys):
    with_own_file(folder, "def main(count):", "count()", "count()")
    main(["config=train.py", f"model={MODEL}"])
    said = (
        "Assumed, because the files take them from elsewhere: per_device_train_batch_size, num_generations. Give them"
    )
    assert said in capsys.readouterr().err
    main(["config=train.py", f"model={MODEL}", "per_device_train_batch_size=2", "num_generations=2"])
    assert "elsewhere" not in capsys.readouterr().err


def test_what_another_file_states_is_not_assumed(folder):
    with_own_file(folder, "def main(count):", "count()", "count()")
    (folder / "job.yaml").write_text(yaml.safe_dump({"num_generations": 2, "model_name_or_path": MODEL}))
    read = found("config=train.py", "config=job.yaml")
    assert read["trial"]["num_generations"] == 2
    text = " ".join(read["notes"])
    assert "num_generations=8 (" not in text
    assert "per_device_train_batch_size=8 (line 4 of train.py has no literal)" in text


def test_what_the_script_keeps_in_itself_counts_by_its_name(folder):
    with_own_file(folder, "class Job:\n  def main(self):", "self.training.batch_size", "self.num_generations")
    (folder / "job.yaml").write_text(yaml.safe_dump({**OWN_FILE, "data": {}, "sampling": {}, "num_generations": 2}))
    trial = found("config=train.py", "config=job.yaml")["trial"]
    assert (trial["per_device_train_batch_size"], trial["num_generations"]) == (6, 2)


def test_a_key_of_two_sections_is_not_guessed(folder):
    with_own_file(folder, "def main(job):", "job.training.batch_size", "job.group")
    read = found("config=train.py", "config=job.yaml", "num_generations=6")
    assert "data.group" not in " ".join(read["notes"])
    with_own_file(folder, "def main(job):", "job.training.batch_size", "job.data.group")
    assert found("config=train.py", "config=job.yaml")["trial"]["num_generations"] == 9


@pytest.mark.parametrize("value", ['job.get("group", 3)', 'getattr(job, "group", 3)'])
def test_a_default_of_what_may_be_any_section_is_not_known(folder, capsys, value):
    with_own_file(folder, "def main(job):", "job.training.batch_size", value)
    assert "num_generations" in refused(capsys, "config=train.py", "config=job.yaml")
    with_own_file(folder, "def main(job):", "job.training.batch_size", value.replace("job", "job.model", 1))
    assert found("config=train.py", "config=job.yaml")["trial"]["num_generations"] == 3


@pytest.mark.parametrize("value", ['3 if ["rows"] in {"rows": 1} else 6', '{"rows": 6}.get(["rows"], 6)'])
def test_a_key_that_no_mapping_can_have_is_absent(folder, value):
    with_own_file(folder, "def main(job):", value, "3")
    assert found("config=train.py", f"model={MODEL}")["trial"]["per_device_train_batch_size"] == 6


@pytest.mark.parametrize("test", ["job.training.batch_size == 5", '"other" in job.data'])
def test_a_condition_is_decided_by_the_file(folder, test):
    with_own_file(folder, "def main(job):", f"4 if {test} else job.training.batch_size")
    assert found("config=train.py", "config=job.yaml")["trial"]["per_device_train_batch_size"] == 6


@pytest.mark.parametrize("test", ["model is None", "not model", '"batch_size" in job'])
def test_a_condition_that_is_unknown_is_open(folder, capsys, test):
    with_own_file(folder, "def main(job, model):", f"4 if {test} else job.training.batch_size", "job.sampling.group")
    said = "per_device_train_batch_size=6: is training.batch_size in job.yaml, and trl has no key of that name."
    assert said in refused(capsys, "config=train.py", "config=job.yaml")


@given(st.recursive(st.integers(), lambda inner: st.dictionaries(st.text(min_size=1), inner, min_size=1), max_leaves=9))
def test_a_file_is_looked_up_as_its_keys(content):
    content = {"top": content}
    keys, read = FileKeys(content, read={}), {}
    pairs = [(keys, content, "")]
    while pairs:
        own, plain, path = pairs.pop()
        assert list(own) == list(plain)
        for key, value in plain.items():
            if isinstance(value, dict):
                pairs.append((own[key], value, f"{path}{key}."))
            else:
                assert own[key] == value
                read[f"{path}{key}"] = value
    assert keys.read == read


def test_one_of_a_scripts_trainers_is_chosen_by_the_recipe(folder, capsys):
    (folder / "stages.py").write_text(f"""
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
first = SFTConfig(per_device_train_batch_size=2, max_length=512)
SFTTrainer(model="{MODEL}", args=first)
second = GRPOConfig(per_device_train_batch_size=8, num_generations=4, max_completion_length=64)
GRPOTrainer(model="Qwen/Qwen2.5-1.5B-Instruct", args=second, reward_funcs=[good])
""")
    said = "config=stages.py: trains by sft and grpo, and one recipe is allowed. Give recipe=sft|grpo as well."
    assert said in refused(capsys, "config=stages.py")
    assert said in refused(capsys, "config=stages.py", "recipe=dpo")
    of_sft = found("config=stages.py", "recipe=sft")["trial"]
    assert (of_sft["model"], of_sft["per_device_train_batch_size"], of_sft["max_length"]) == ("qwen2.5-0.5b", 2, 512)
    trial = found("config=stages.py", "recipe=grpo")["trial"]
    assert (trial["model"], trial["per_device_train_batch_size"]) == ("qwen2.5-1.5b", 8)
    cells = [{"cell_type": "code", "source": (folder / "stages.py").read_text()}]
    (folder / "stages.ipynb").write_text(json.dumps({"cells": cells}))
    assert found("config=stages.ipynb", "recipe=grpo")["trial"] == trial


OF_PREFERENCES = {"model_name_or_path": MODEL, "beta": 0.1, "max_length": 512, "per_device_train_batch_size": 2}
OF_ROWS = {"model_name_or_path": MODEL, "max_length": 512}


@pytest.mark.parametrize(
    ("path", "keys", "recipe"),
    [
        ("configs/kto.yaml", OF_PREFERENCES, "kto"),  # MiuLab/FactAlign
        ("dpo/config_full.yaml", OF_ROWS, "dpo"),  # ada-zf1225/zephyr-qlora, and its ORPO
        ("orpo/config_full.yaml", OF_PREFERENCES, "orpo"),
        ("online_dpo.yaml", OF_PREFERENCES, "online_dpo"),
        ("sft_config.yaml", {"model_name_or_path": MODEL, "learning_rate": 1e-5}, "sft"),
        ("recipe.yaml", OF_ROWS, "sft"),
        ("my-dpo-recipes/recipe.yaml", OF_ROWS, "sft"),
        ("sft_then_dpo.yaml", OF_ROWS, "sft"),
        ("sft.yaml", {"model_name_or_path": MODEL, "num_generations": 4}, "grpo"),
    ],
)
def test_a_files_name_says_its_trainer_where_no_key_does(folder, capsys, path, keys, recipe):
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text(yaml.safe_dump(keys))
    if recipe in OTHER_TRAINERS:
        assert f"is for {recipe} by its name, which has no recipe here" in refused(capsys, f"config={path}")
        return
    assert found(f"config={path}")["trial"]["recipe"] == recipe


@pytest.mark.parametrize(("value", "is_length"), [(True, False), (512, True)])
def test_a_switch_of_the_users_own_is_no_length(folder, capsys, value, is_length):
    """f15cubing/slm-deid: `completion_only: true` is the loss on completions alone."""
    own = {"max_length": 64, "per_device_train_batch_size": 2, "completion_only": value}
    (folder / "job.yaml").write_text(yaml.safe_dump({"model": {"name": MODEL}, "sft": own}))
    code = main(["config=job.yaml", "gpu=h100"])
    assert (code == EXIT_USAGE) is is_length
    assert ("is sft.completion_only in job.yaml" in capsys.readouterr().err) is is_length


@pytest.mark.parametrize("name", ["job.yaml", "train.py"])
def test_rows_that_are_not_cut_have_the_length_of_the_data(folder, capsys, name):
    """`max_length=None`, as seanie12/ThinkSafe states it: trl's default does not hold then."""
    (folder / "job.yaml").write_text(f"model_name_or_path: {MODEL}\nmax_length: null\npacking: false\n")
    call = "SFTConfig(max_length=None, per_device_train_batch_size=2)"
    (folder / "train.py").write_text(f"from trl import SFTConfig\nSFTTrainer('{MODEL}', args={call})\n")
    assert (
        f"max_length=1024 ({name} cuts no row: give the length of your longest)" in found(f"config={name}")["notes"][0]
    )
    main([f"config={name}"])
    assert "Assumed, because the files take them from elsewhere: max_length." in capsys.readouterr().err
    assert "cuts no row" not in " ".join(found(f"config={name}", "max_length=64")["notes"])


def test_a_flag_may_be_a_text(folder):
    """akhatua2/ExplAIn: options of argparse that are "true", and are compared with it."""
    (folder / "train.py").write_text(
        f"""
parser.add_argument("--checkpointing", default="true")
args = parser.parse_args()
GRPOTrainer("{MODEL}", args=GRPOConfig(gradient_checkpointing=args.checkpointing, num_generations=2))
"""
    )
    assert found("config=train.py")["trial"]["gradient_checkpointing"] is True


@pytest.mark.parametrize(
    ("again", "length"),
    [("TOKENS = 96", 96), ("TOKENS = 64", 256), ("if x:\n    TOKENS = 96", 256), ("TOKENS += 1", 256)],
)
def test_a_constant_may_be_bound_again_to_the_same_value(folder, again, length):
    """MoritzPoe/Granite350M_nl2sql: a notebook that has its first cell twice."""
    text = f"TOKENS = 96\n{again}\nGRPOTrainer('{MODEL}', args=GRPOConfig(max_completion_length=TOKENS))\n"
    (folder / "train.py").write_text(text)
    answered = found("config=train.py")
    assert answered["trial"]["max_completion_length"] == length or "has no literal" in answered["notes"][0]
    assert (length == 96) == (answered["trial"]["max_completion_length"] == 96)


def test_the_base_of_an_adapter_is_loaded_where_a_model_is_one(folder, capsys):
    """TsinghuaC3I/UltraMedical, after alignment-handbook: nothing says that the model is an adapter."""
    text = f"""
model = "{MODEL}"
if CONDITION:
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base()), model)
DPOTrainer(model, args=DPOConfig(max_length=512, per_device_train_batch_size=2))
"""
    (folder / "train.py").write_text(text.replace("CONDITION", "is_adapter_model(model) is True"))
    assert found("config=train.py", f"model={MODEL}")["trial"]["tuning"] == "full"
    (folder / "train.py").write_text(text.replace("CONDITION", "loads_one(model)"))
    assert "is that of the adapter which line 4 of train.py loads" in refused(capsys, "config=train.py")


def test_an_adapter_or_a_quantisation_of_a_condition_is_named(folder):
    text = f"""
from trl import SFTConfig, SFTTrainer
bits = BitsAndBytesConfig(load_in_4bit=True) if is_small() else None
model = AutoModelForCausalLM.from_pretrained("{MODEL}", quantization_config=bits)
if is_small():
    lora = LoraConfig(r=8)
SFTTrainer(model, args=SFTConfig(max_length=64), peft_config=lora)
"""
    (folder / "train.py").write_text(text)
    answered = found("config=train.py")
    assert (answered["trial"]["tuning"], answered["trial"]["lora_rank"]) == ("qlora", 8)
    assert "an adapter (line 6 of train.py is under a condition that is not known)" in answered["notes"][0]
    assert "quantised weights (line 3 of train.py is under a condition that is not known)" in answered["notes"][0]


@pytest.mark.parametrize(
    ("start", "count"),
    [
        ("accelerate launch --num_processes 2 -m axolotl.cli.train", 2),
        ("torchrun --nproc_per_node 2 -m axolotl.cli.train", 2),
        ("python -m axolotl.cli.train", None),
        ("axolotl train", None),
    ],
)
def test_a_module_that_trains_is_the_command_of_its_program(folder, start, count):
    """johnlund/epistemic-stance: axolotl's earlier way."""
    keys = {"base_model": MODEL, "sequence_len": 64, "micro_batch_size": 2, "adapter": "lora", "lora_r": 4}
    keys |= {"lora_alpha": 8, "lora_target_linear": True}
    (folder / "axolotl.yaml").write_text(yaml.safe_dump(keys))
    (folder / "run.sh").write_text(f"{start} axolotl.yaml\n")
    trial = found("config=run.sh")["trial"]
    assert (trial["recipe"], trial["lora_rank"], trial["max_length"]) == ("sft", 4, 64)
    assert trial["num_processes"] == (count or 1)


def test_keys_that_a_parser_of_the_script_has_are_not_trls(folder):
    """MarkusEnglberger/RLcausality: `use_lora` of a class of the script, next to trl's arguments."""
    (folder / "train.py").write_text(
        f"""
@dataclass
class Ours:
    use_lora: bool = field(default=False)
    rank: int = field(default=8)
ours, args = TrlParser((Ours, SFTConfig)).parse_args_and_config()
lora = LoraConfig(r=ours.rank) if ours.use_lora else None
SFTTrainer("{MODEL}", args=args, peft_config=lora)
"""
    )
    (folder / "job.yaml").write_text("use_lora: true\nrank: 4\nmax_length: 64\nper_device_train_batch_size: 2\n")
    trial = found("config=train.py", "config=job.yaml")["trial"]
    assert (trial["tuning"], trial["lora_rank"], trial["max_length"]) == ("lora", 4, 64)


@pytest.mark.parametrize(
    ("definition", "call", "rows"),
    [
        ("def train(rows, group=4):", "train(6, group=3)", 6),
        ("def train(*, rows=6, group):", "train(group=3)", 6),
        ("def train(rows, group):", "train(rows=options.rows, group=3)", 12),
        ("class Job:\n  def train(self, rows, group):", "Job().train(6, 3)", 6),
        # What another object's method of the name gets says nothing of this function, nor of the defaults of this one.
        ("def train(rows=6, group=3):", "trainer.train(2, 2)", None),
        ("class Job:\n  def train(self, rows=6, group=3):", "trainer.train()", None),
        ("def train(rows, group):", "train(6, 3)\ntrain(6, 3)", 6),
        # What * and ** add is not known.
        ("def train(rows, group=3):", "train(*given)", None),
        ("def train(rows=6, group=3):", "train(**given)", None),
    ],
)
def test_parameters_are_what_the_only_call_passes(folder, definition, call, rows):
    (folder / "train.py").write_text(f"""
import argparse
from trl import GRPOConfig, GRPOTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=12)
options = parser.parse_args()
{definition}
    args = GRPOConfig(per_device_train_batch_size=rows, num_generations=group)
    GRPOTrainer(model="{MODEL}", args=args, reward_funcs=[good])
{call}
""")
    read = found("config=train.py")
    assert ("per_device_train_batch_size=8 (line" in " ".join(read["notes"])) == (rows is None)
    assert read["trial"]["per_device_train_batch_size"] == (rows or 8)
    assert read["trial"]["num_generations"] == (3 if rows else 8)


@pytest.mark.parametrize("module", ["ours", ".ours", "..package.ours", "."])
def test_a_trainer_that_is_not_trls_is_refused(folder, capsys, module):
    imported = f"from {module} import GRPOConfig, GRPOTrainer"
    (folder / "train.py").write_text(f"{imported}\nGRPOTrainer('tiny', GRPOConfig())\n")
    assert "imports nothing of trl" in refused(capsys, "config=train.py")


def test_lines_of_a_notebook_are_named_by_cell(folder):
    cells = [
        {
            "cell_type": "code",
            "source": ["!pip install trl \\\n", "  peft\n", "%cd work\n", "from trl import GRPOConfig\n"],
        },
        {"cell_type": "markdown", "source": "text"},
        {
            "cell_type": "code",
            "source": f"\nargs = GRPOConfig(num_generations=choose())\nGRPOTrainer('{MODEL}', args=args)",
        },
    ]
    (folder / "n.ipynb").write_text(json.dumps({"cells": cells}))
    assert "num_generations=8 (line 2 of cell 3 of n.ipynb has no literal)" in found("config=n.ipynb")["notes"][0]


TRAINS = f"""from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(num_generations=G, max_completion_length=64, per_device_train_batch_size=8)
trainer = GRPOTrainer(model="{MODEL}", args=args)
trainer.train()"""


def notebook(folder, *sources):
    cells = [{"cell_type": "code", "source": source} for source in sources]
    (folder / "n.ipynb").write_text(json.dumps({"cells": cells}))
    return "config=n.ipynb"


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (("G = 4", "print 'hello'\nfor i in range(", TRAINS), "no effect of cell 2, which is not valid Python"),
        (("G = 4", "print G, 'generations'", TRAINS), "no effect of cell 2"),
        (("G = 4", "def reward(rows:\n    return 1", TRAINS), "no effect of cell 2"),
        (("G = 4", TRAINS, "args = GRPOConfig(num_generations=8\n"), "no effect of cell 3"),
        (("G = 4", "%%bash\nls (", "files = !ls\n%cd x\nls?", TRAINS), ""),
        (("G = 4", "text = ('%d'\n % 3)", TRAINS), ""),
    ],
)
def test_a_broken_cell_that_sets_nothing_is_named(folder, cells, said):
    answered = found(notebook(folder, *cells))
    assert answered["trial"]["num_generations"] == 4
    notes = " ".join(answered["notes"])
    assert said in notes and ("no effect" in notes) is bool(said)


@pytest.mark.parametrize(
    "broken",
    [
        "G = 8\nprint 'eight'",
        "x, G = 1, 8\nprint x",
        "for G in (4, 8):",
        "args.beta = 0.1\nprint args",
        "def chosen():\n  return (8",
        "model = AutoModelForCausalLM.from_pretrained('x'",
        "peft = LoraConfig(r=8\n",
    ],
)
def test_a_broken_cell_that_may_matter_refuses(folder, capsys, broken):
    trains = TRAINS.replace("=G,", "=min(G, chosen()),")
    word = notebook(
        folder, "G = 4\ndef chosen():\n    return 4", trains.replace("trainer.train()", ""), broken, "trainer.train()"
    )
    assert "has a cell 3 on which its training may depend, and which is not valid Python" in refused(capsys, word)


def test_the_own_lines_of_a_notebook_may_be_in_a_script(folder):
    (folder / "colab.py").write_text(f"# Exported.\n!pip install trl\nG = 4\n{TRAINS}\n")
    assert found("config=colab.py")["trial"]["num_generations"] == 4


def test_keys_in_sections_are_read_and_named(folder, capsys):
    own = {
        "model": {"name": MODEL, "dtype": "bfloat16"},
        "lora": {"r": 4, "alpha": 8, "target_modules": ["q_proj"]},
        "training": {"per_device_train_batch_size": 4, "num_generations": 4, "logging_steps": 1},
        "smoke": {"training": {"num_generations": 2}},
        "rewards": {"ours": 1.0},
    }
    (folder / "own.yaml").write_text(yaml.safe_dump(own))
    answered = found("config=own.yaml")
    trial = answered["trial"]
    assert (trial["model"], trial["tuning"], trial["lora_rank"], trial["lora_alpha"]) == ("qwen2.5-0.5b", "lora", 4, 8)
    assert (trial["num_generations"], trial["per_device_train_batch_size"]) == (4, 4)
    assert "model.name as model_name_or_path" in answered["notes"][0]
    assert main(["config=own.yaml"]) == 0
    assert "rewards.ours" in capsys.readouterr().err
    own["training"]["batch_size"] = 7
    (folder / "own.yaml").write_text(yaml.safe_dump(own))
    assert "is training.batch_size in own.yaml, and trl has no key of that name" in refused(capsys, "config=own.yaml")
    assert found("config=own.yaml", "per_device_train_batch_size=8")["trial"]["per_device_train_batch_size"] == 8


@pytest.mark.parametrize("trainer", OTHER_TRAINERS)
def test_a_trainer_without_a_recipe_is_named_everywhere(folder, capsys, trainer):
    training = "training: {bf16: true, max_steps: 9, per_device_train_batch_size: 4}"
    (folder / "own.yaml").write_text(f"method: {trainer}\nmodel: {{name: {MODEL}}}\n{training}\n")
    assert f"is for {trainer}, which has no recipe here" in refused(capsys, "config=own.yaml")
    (folder / "run.sh").write_text(f"trl {trainer} --model_name_or_path {MODEL}\n")
    assert f"trl {trainer}: has no recipe here" in refused(capsys, "config=run.sh")
    (folder / "run.sh").write_text(f"python train_{trainer}.py --model_name_or_path {MODEL} --bf16\n")
    assert "is a trainer without a recipe here, by its name" in refused(capsys, "config=run.sh")


def test_two_values_of_a_key_in_sections_are_a_fault(folder, capsys):
    own = {
        "model": {"name": MODEL},
        "a": {"num_generations": 4, "beta": 0.1},
        "b": {"num_generations": 8, "x": 1, "y": 2},
    }
    own["b"].update({f"own_{number}": number for number in range(9)})
    (folder / "own.yaml").write_text(yaml.safe_dump(own))
    assert "is 4 by a.num_generations and 8 by b.num_generations" in refused(capsys, "config=own.yaml")


def test_a_format_with_a_vocabulary_is_read():
    names = Vocabulary(
        version="ours 1.0",
        names={"base": "model_name_or_path", "mem.rows": "per_device_train_batch_size"},
        values={"optim": {"adam": "adamw_torch"}},
        defaults={"max_completion_length": 99},
        recipe_key="kind",
        recipes={"rl": Recipe.GRPO},
        rules=(lambda leaves: {"beta": 0.0} if leaves.get("no_ref") else {},),
        free=frozenset({"colour"}),
        changes={"kernels": ("none",)},
    )
    ours = Format(name="ours", keys=(Keys(any_of=frozenset({"base"})),), vocabulary=names)
    values = {"base": "tiny", "mem": {"rows": 2}, "optim": "adam", "kind": "rl", "no_ref": True, "colour": "red"}
    part = foreign_part("o.yaml", values, [ours])
    assert part is not None
    assert part.values == {
        "model_name_or_path": "tiny",
        "per_device_train_batch_size": 2,
        "optim": "adamw_torch",
        "max_completion_length": 99,
        "beta": 0.0,
    }
    assert (part.recipe, part.faults, part.unknown) == (Recipe.GRPO, (), ("no_ref",))
    wrong = foreign_part("o.yaml", {"base": "tiny", "kind": "dpo", "kernels": "fast", "lora_size": 3}, [ours])
    assert wrong is not None
    assert {fault.key for fault in wrong.faults} == {"kind", "kernels", "tuning"}


@pytest.mark.parametrize(("key", "value"), [("num_iterations", 1), ("steps_per_generation", 1), ("bf16", True)])
def test_only_keys_of_true_and_false_are_flags(key, value):
    assert is_flag(key) is isinstance(value, bool)
    assert repr(typed(key, "1")) == repr(value)


def test_a_script_of_another_program_has_one_sentence(folder, capsys):
    """Nothing else of it is read, so it lacks no model and no adapter."""
    lines = "FastVisionModel.from_pretrained(model_name=NAME, load_in_4bit=True)\nGRPOConfig(fp16=True)\n"
    (folder / "train.py").write_text(f"from trl import GRPOConfig\nfrom unsloth import FastVisionModel\n{lines}")
    said = refused(capsys, "config=train.py")
    assert said.splitlines() == [
        "config=train.py: loads its model by Unsloth's FastVisionModel, whose kernels have no formula and no bound "
        "here. Give the job by keys of a trial (model=NAME tuning=lora ...) for what trl's own trainer needs."
    ]
