"""The page of the reference that says which files of others are read, and how many kept ones are answered."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from profiler.config.files.foreign_formats import FORMATS
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import markdown_table

ROOT = Path(__file__).parents[2]
_COUNTS = ROOT / "tests" / "formats" / "counts.json"


class _Read(NamedTuple):
    """A format that is read."""

    name: str
    version: str
    read: str
    refused: str
    kept: str
    """Its key in the counts of kept files; empty if its files are counted elsewhere."""


_READ = (
    _Read(
        "a recipe of trl (YAML)",
        "trl 0.14 to 1.16",
        "every key of its arguments; accelerate's, DeepSpeed's and peft's files next to it",
        "keys that change memory without a formula, a file of DeepSpeed or accelerate that is not there",
        "",
    ),
    _Read(
        "a command line of trl, `accelerate launch`, `torchrun`, `deepspeed` or `python`: a shell script, or "
        "words after `--`",
        "trl 1.16, accelerate 1.15, torch 2.9, DeepSpeed 0.18",
        "variables, arrays, branches; the recipe, the configuration and the script that it names, where they are; "
        "arguments over all of these",
        "several trainings in one script, trainers without a recipe, a recipe that is not there, own arguments of a "
        "script that is not there and that may change memory",
        "trl_command_lines",
    ),
    _Read(
        "a training script of trl, or a notebook (`.py`, `.ipynb`)",
        "trl 1.16, transformers 5.23, peft 0.21",
        "literals, constants, f-strings, dictionaries, functions with one `return`, the user's YAML where the script "
        "looks values up in it, options of argparse and fire and fields of "
        "dataclasses with their defaults, modules next to the script, entries that are set in dictionaries; calls "
        "under conditions that do not hold are passed",
        "a trainer that is not trl's and derives from none of it, two values of one key, keys that one of two "
        "trainings states and the other does not; what is no literal is named with its line, and a class of a module "
        "that is not there by its name",
        "python_scripts",
    ),
    _Read(
        "a YAML of a user's own script, with sections",
        "names of trl 1.16 and peft 0.21",
        "keys of trl, transformers and peft in any section, and a few names that can mean one thing only",
        "fewer than half of the keys that may change memory known; single ones are named with what settles them",
        "own_yaml",
    ),
    _Read(
        "LLaMA-Factory",
        "LLaMA-Factory 0.9.6",
        "YAML, and `llamafactory-cli train` in a shell script or after `--`: `stage: sft`, `dpo` or `kto` with "
        "`finetuning_type: lora` or `full`, 4-bit weights, its own files of DeepSpeed; its defaults, types and losses",
        "other stages, `pref_loss: orpo` and `simpo`, Liger's kernels with preferences, freeze, OFT, GaLore, "
        "APOLLO, BAdam, Muon, Unsloth, KTransformers, Megatron, neat packing, PiSSA, DoRA, 8 bits, float16 over 4 "
        "bits, adapters that are trained further, models with images",
        "llama_factory",
    ),
    _Read(
        "axolotl",
        "axolotl 0.18",
        "YAML, and `axolotl train` in a shell script or after `--`: SFT, `reward_model: true` and `rl: grpo`, "
        "`dpo`, `ipo` or `kto`; LoRA, QLoRA, full; packing, Liger's kernels where all are on; its defaults, types and "
        "losses",
        "other trainers, full fine-tuning by KTO, FSDP, context and tensor parallelism, offloaded activations, "
        "plugins, single kernels of Liger, 8 bits, float16, LoftQ, DoRA, ReLoRA, new tokens, adapters that are trained "
        "further, models with images",
        "axolotl",
    ),
    _Read(
        "ms-swift",
        "ms-swift 4.6",
        "`swift sft`, `swift pt` and `swift rlhf --rlhf_type grpo`, `dpo`, `kto` or `rm`, and their files "
        "`swift/cli/*.py` by `torchrun` or `python`, in YAML, in a shell script or after `--`: LoRA, full "
        "and 4-bit weights, its own files of DeepSpeed, vLLM; its defaults and losses",
        "other trainers, Megatron, sequence parallelism, padding-free batches, weights and optimizer moved away while "
        "vLLM generates, FSDP's own file, other tuners, models with images, rows without `max_length`, version 2",
        "ms_swift",
    ),
    _Read(
        "OpenRLHF",
        "OpenRLHF 0.11.2 with the options of 0.5 to 0.11, and the losses of 0.7 to 0.11",
        "`openrlhf.cli.train_sft`, `train_dpo` and `train_rm`, started by `deepspeed --module`, `torchrun` or "
        "`python`, in a shell script or after `--`: LoRA and full, ZeRO with its optimizer on the host, packed rows, "
        "a reference of DPO with an engine of its own; its defaults, types and losses",
        "KTO, and PPO, GRPO and REINFORCE with Ray, of DPO optimizer or reference on the host and a reference of "
        "another name, mixtures of experts, 4 bits, float16, ring attention, tensor "
        "parallelism, Liger's kernels, compiled models, Muon, options of a changed copy that may change memory; with "
        "the options of earlier releases attention or type that a later one has another default of",
        "openrlhf",
    ),
    _Read(
        "a script or notebook of Unsloth",
        "Unsloth 2026.10.9",
        "`FastLanguageModel` with `GRPOTrainer` or `SFTTrainer`: the settings that its code makes effective. Its "
        "kernels have no formula, so the answer of `estimate` is two bounds, and a card between them is not decided",
        "`FastModel`, `FastVisionModel`, other trainers and families than Gemma, Llama, Mistral, Qwen2 and Qwen3, "
        "trained embeddings, full fine-tuning, 8 bits, FP8, float16, several GPUs; commands other than `estimate`",
        "unsloth_scripts",
    ),
    _Read(
        "a run script or YAML of verl's `main_ppo`",
        "verl 0.8.0.dev and 0.9.1 (`verl=`, or by a key of one alone)",
        "Hydra's overrides with the variables and branches of the shell; FSDP with Ulysses, LoRA and experts, a "
        "critic, a reward model and a rollout engine on the same GPUs; a script with `grad_offload` of FSDP or a "
        "new key `+trainer.val_before_train` has the defaults of verl before 0.3; sizes that it takes from elsewhere "
        "leave the verdict open",
        "VeOmni, Megatron-Lite and other engines, models with images, sizes that do not divide; Megatron has no "
        "verdict, because nothing judges its layers",
        "",
    ),
)


_VERDICTS = ("answered", "answered with model=", "not decided", "refused")
"""What becomes of one of verl's scripts."""


def formats_page() -> str:
    """Return the page."""
    counts = json.loads(_COUNTS.read_text(encoding="utf-8"))
    verl: dict[str, dict[str, int]] = counts["verl_scripts"]
    rows = [[each.name, each.version, each.read, each.refused] for each in _READ]
    lines = [
        "# Which files can I bring?",
        "",
        "`estimate`, `solve` and `advise` read them with `config=FILE`, and the page for the browser",
        "where they are dropped. A command is given after `--`:",
        "`python -m profiler.estimate gpu=h100 -- trl grpo --config grpo.yaml`.",
        "Nothing of a file is run. A value that changes memory and is not stated is named as an assumption, or refuses",
        "the file.",
        "",
        markdown_table(["format", "read from", "what is read", "what is refused by name"], rows, align=Align.LEFT),
        "",
        "## Kept files",
        "",
        "Of files in public repositories the tests keep keys and values, and compare each answer with them. None is",
        "answered otherwise than its file says.",
        "",
        markdown_table(
            ["format", "files", "answered", "answered after `model=`", "refused by name", "wrong"], list(_kept(counts))
        ),
        "",
        "## verl's own scripts",
        "",
        f"The {sum(map(_total, verl.values()))} example scripts `grpo_trainer` and `tuning/lora` at the tag v0.9.0, "
        "with `verl=0.9.1`, and the path",
        "of the model where that is of the user's machine. Each key of an answered script is compared with the job.",
        "*Not decided* has figures for what is counted, and names what is not.",
        "",
        markdown_table(
            ["engine", "scripts", *_VERDICTS],
            [
                [name, *map(str, (_total(found), *(found.get(each, 0) for each in _VERDICTS)))]
                for name, found in verl.items()
            ],
        ),
        "",
        "## Formats that are named and not read",
        "",
        markdown_table(
            ["format", "known by"],
            [[each.name, _known_by(each.name)] for each in FORMATS if each.vocabulary is None and each.trains is None],
            align=Align.LEFT,
        ),
        "",
    ]
    return "\n".join(lines)


def _total(counts: dict[str, int]) -> int:
    return sum(counts.get(each, 0) for each in _VERDICTS)


def _kept(counts: dict[str, dict[str, int]]) -> Iterator[list[str]]:
    for each in _READ:
        if each.kept:
            found = counts[each.kept]
            shown = [found.get(key, 0) for key in ("answered", "answered with model=", "refused")]
            yield [each.name, str(sum(shown)), *map(str, shown), str(found.get("wrong", 0))]


def _known_by(name: str) -> str:
    found = next(each for each in FORMATS if each.name == name)
    ways = [("keys", found.keys), ("commands", found.commands), ("imports", found.modules)]
    return ", ".join(way for way, signature in ways if signature)
