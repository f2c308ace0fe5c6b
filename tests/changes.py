"""Changes of the program, as the rows and files that are added to it, and what it then does."""

from dataclasses import dataclass
from pathlib import Path

from profiler.storage.records.record_folder import MONITORED, SCRIPTS, TRIALS

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row that is added to a file, or a new file."""

    file: str
    before: str
    """The text that the row stands before, once in the file; empty for a new file."""
    row: str


@dataclass(frozen=True, kw_only=True)
class Change:
    """Rows that are added, and what the program then does."""

    rows: tuple[Row, ...]
    program: str
    printed: str


CARD = Change(
    rows=(
        Row(
            file="profiler/domain/cards/gpu.py",
            before='    Gpu(\n        name="h200-141gb"',
            row="""\
    Gpu(
        name="x900-64gb",
        title="NVIDIA X900",
        memory_bytes=64_000 * MIB,
        source="a test",
        chip=Chip(compute_capability=(9, 0), multiprocessors=99),
        board=Board(nvml_mib=65_536, l2_kib=1024, bus_bits=512, counts_errors=True),
        roofline=_H100_PEAKS,
        other_names=("excalibur",),
    ),
""",
        ),
    ),
    program="""
from profiler.config.claims.settings import ROOFLINES
from profiler.config.prices import read_prices
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.cards.gpu_names import name_card
from profiler.emulation.card import card_description
from profiler.estimate.main import answer

print([name_card(text).name for text in ("x900", "NVIDIA X900", "excalibur")])
print(*read_prices("gpu,price_per_hour\\nexcalibur,2.5", name="prices.csv").by_card, "x900-64gb" in ROOFLINES)
print("nvml_memory_bytes=68719476736" in card_description(KNOWN_GPUS["x900-64gb"]))
print(all("x900-64gb" in answer(["model=tiny", gpu, "format=json"]) for gpu in ("gpu=x900", "gpu=any")))
""",
    printed="['x900-64gb', 'x900-64gb', 'x900-64gb']\nx900-64gb True\nTrue\nTrue\n",
)

FAMILY = Change(
    rows=(
        Row(
            file="profiler/domain/architectures/families.py",
            before='    Family(\n        model_type="mistral"',
            row="""\
    Family(
        model_type="newllm",
        defaults=Defaults(max_position_embeddings=512, num_key_value_heads=4, head_dim=32),
        layers=Layers(qk_norm=True, norms_per_layer=4, caps_scores=True),
        checks=Checks(heads_fill_hidden_size=True),
        sliding_window=128,
    ),
""",
        ),
    ),
    program="""
from profiler.analytical import parameter_count
from profiler.config.models.architecture import read_architecture
from profiler.domain.errors import UsageError
from profiler.estimate.main import answer

config = {"model_type": "newllm", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
          "num_attention_heads": 8, "vocab_size": 1000}
found = read_architecture(config, model="m")
print(found.context, found.num_key_value_heads, found.sliding_window, found.has_sdpa, found.has_closed_form)
layer = 256 * (256 + 128 + 128 + 256) + 3 * 256 * 512 + 2 * 32 + 4 * 256
print(parameter_count(found) == 2 * 1000 * 256 + 2 * layer + 256)
try:
    read_architecture({**config, "head_dim": 64}, model="m")
except UsageError as error:
    print("this model type always has" in str(error), "newllm" in str(error))
print("peak_allocated_bytes" in answer(["model=m", "format=json"], load_model=lambda _: config))
""",
    printed="512 4 128 False True\nTrue\nTrue True\nTrue\n",
)


SHARDING = Change(
    rows=(
        Row(
            file="profiler/domain/trials/trial.py",
            before='    DEEPSPEED = "deepspeed"',
            row='    HALVED = "halved"\n',
        ),
        Row(
            file="profiler/analytical/timeline/sharding/halved.py",
            before="",
            row="""\
from profiler.analytical.formulas.models.parameters import parameter_count
from profiler.analytical.formulas.sizes.quantities import Term
from profiler.analytical.timeline.sharding.sharding import TrialSharding
from profiler.domain.memory import Category


class Halved(TrialSharding):
    def kept(self, alone):
        return {Category.WEIGHTS: Term(parameter_count(self.architecture), lambda: "half of all weights")}
""",
        ),
        Row(
            file="profiler/analytical/timeline/recipes/registry.py",
            before="    DistributedType.DEEPSPEED: Zero,",
            row="    DistributedType.HALVED: Halved,\n",
        ),
        Row(
            file="profiler/analytical/timeline/recipes/registry.py",
            before="from profiler.analytical.timeline.sharding.sharding import",
            row="from profiler.analytical.timeline.sharding.halved import Halved\n",
        ),
        Row(
            file="profiler/domain/trials/labels.py",
            before='    DistributedType.DEEPSPEED: "ZeRO-{stage}",',
            row='    DistributedType.HALVED: "halves",\n',
        ),
    ),
    program="""
import json
from profiler.estimate.main import answer

words = ["model=qwen2.5-0.5b", "num_processes=2", "distributed_type=halved"]
(*_, step) = json.loads(answer([*words, "format=json"]))["phases"]
weights = [part["formula"] for part in step["categories"] if part["category"] == "weights"]
print(weights, "halves on 2 GPUs" in answer(words), "communication" in answer(words))
""",
    printed="['half of all weights'] True False\n",
)


RECIPE = Change(
    rows=(
        Row(
            file="profiler/domain/trials/recipe.py",
            before='    SFT = "sft"',
            row='    LABELS = "labels"\n',
        ),
        Row(
            file="profiler/domain/trials/recipe.py",
            before="            case Recipe.SFT:",
            row="            case Recipe.LABELS:\n                return LABELLED\n",
        ),
        Row(
            file="profiler/analytical/timeline/recipes/labels.py",
            before="",
            row="""\
from profiler.analytical.formulas.sizes.trial_keys import with_keys
from profiler.analytical.timeline.recipes.of_data import data_micro_batch, single_pass_instants
from profiler.domain.trials.trial import Lengths


def whole_rows(spec):
    return data_micro_batch(with_keys(spec, lengths=Lengths.FORCED))


def label_instants(spec, architecture):
    return single_pass_instants(with_keys(spec, lengths=Lengths.FORCED), architecture)
""",
        ),
        Row(
            file="profiler/analytical/timeline/recipes/registry.py",
            before="from profiler.analytical.timeline.recipes.of_data import",
            row="from profiler.analytical.timeline.recipes.labels import label_instants, whole_rows\n",
        ),
        Row(
            file="profiler/analytical/timeline/recipes/registry.py",
            before="    Recipe.SFT: _Step(",
            row="    Recipe.LABELS: _Step(micro_batch=whole_rows, instants=label_instants, holds_for=LABELLED),\n",
        ),
        Row(
            file="profiler/training/recipes/labels.py",
            before="",
            row="""\
from dataclasses import replace

from profiler.domain.trials.trial import Lengths
from profiler.training.recipes.sft import Sft


class Labels(Sft):
    def data(self, spec, tokenizer, rows=None):
        return super().data(replace(spec, lengths=Lengths.FORCED), tokenizer)
""",
        ),
        Row(
            file="profiler/training/recipes/__init__.py",
            before="from profiler.training.recipes.recipe import TrainerRecipe",
            row="from profiler.training.recipes.labels import Labels\n",
        ),
        Row(
            file="profiler/training/recipes/__init__.py",
            before="RECIPES: Mapping[Recipe, TrainerRecipe] =",
            row="_NEW = {Recipe.LABELS: Labels()}\n",
        ),
        Row(
            file="profiler/training/recipes/__init__.py",
            before="    Recipe.GRPO: Grpo(),",
            row="    **_NEW,\n",
        ),
    ),
    program="""
import json
from contextlib import redirect_stdout
from io import StringIO

from profiler.advise.main import main as advise
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.estimate.main import answer
from profiler.measurement.counters.untouched_cuda import compiled_at_first_call
from profiler.solve.main import main as solve

with compiled_at_first_call():
    from profiler.worker.simulated import outcome_on_card, simulate

keys = {"recipe": "labels", "model": "tiny", "max_length": 512, "gpu": "h100-80gb", "lengths": "ragged"}
words = [f"{key}={value}" for key, value in keys.items()]
estimated = json.loads(answer([*words, "format=json"]))
print([phase["phase"] for phase in estimated["phases"]])


def printed(command, *words):
    with redirect_stdout(StringIO()) as out:
        command([*words, "confirm=false"])
    return out.getvalue()


print("max_length: at most" in printed(solve, "max_length", "recipe=labels", "model=qwen2.5-0.5b", "gpu=12GiB"))
print("trl labels --config FILE" in printed(advise, "recipe=labels", "model=qwen2.5-7b", "gpu=l4-24gb"))
architecture = builtin_architecture("tiny")
spec = parse_point({**keys, "backend": "simulated", "steps": 2}, architecture_of=lambda _: architecture)
with redirect_stdout(StringIO()):
    found = outcome_on_card(simulate(spec, BUILTIN_MODELS["tiny"].config), spec)
print(found.verdict.status, 0.95 < estimated["peak_allocated_bytes"] / found.peaks.allocated_bytes < 1.05)
""",
    printed="['load', 'forward', 'backward', 'optimizer']\nTrue\nTrue\nok True\n",
)


COMMAND = Change(
    rows=(
        Row(
            file="profiler/commands.py",
            before='    "seams": Command(',
            row='    "double": Command(summary="double a number"),\n',
        ),
        Row(file="profiler/double/__init__.py", before="", row='"""Double a number."""\n'),
        Row(
            file="profiler/double/__main__.py",
            before="",
            row='import sys\n\nfrom profiler.commands import start\n\nsys.exit(start("double"))\n',
        ),
        Row(
            file="profiler/double/command.py",
            before="",
            row="""\
from dataclasses import dataclass

from profiler.config.options.option import count, option, options_of


@dataclass(frozen=True, kw_only=True)
class Doubled:
    number: int = option(1, count(), "what to double")


OPTIONS = options_of(Doubled)
""",
        ),
        Row(
            file="profiler/double/main.py",
            before="",
            row="""\
from profiler.command_line import print_text
from profiler.config.options.command_words import as_pairs, read_given, word_fault
from profiler.config.options.run_options import option_lines
from profiler.domain.errors import UsageError
from profiler.double.command import OPTIONS, Doubled


def main(argv):
    given = read_given(Doubled, as_pairs(argv))
    if faults := (*(word_fault(word, OPTIONS) for word in given.others), *given.reader.faults):
        raise UsageError(faults)
    print_text(option_lines(OPTIONS.values(), indent=12) if given.wants_help else f"{2 * given.options.number}\\n")
    return 0
""",
        ),
    ),
    program="""
import os

from profiler.console import main, usage

print("  double    double a number" in usage(), flush=True)
for words in (["number=4"], ["--number", "4"], ["--help"], ["nubmer=4"]):
    main(["double", *words])
os.environ["COMP_LINE"] = "grpo-vram double nu"
main(["-sc", "query=bash"])
""",
    printed="True\n8\n8\n  number=N  what to double (default: 1)\nnumber=\n",
)


COLUMN = Change(
    rows=(
        Row(
            file="profiler/domain/runs/outcome.py",
            before="    host_peak_rss_bytes: int | None = field(",
            row="""\
    fan_speed_percent: float | None = field(
        default=None, metadata=column("mean speed of the fans", "the card has none")
    )
""",
        ),
    ),
    program=f"""
import sys
from pathlib import Path

from profiler.domain.runs.outcome import Outcome, Status, Verdict, Work
from profiler.storage.records.record_folder import MONITORED, SCRIPTS, TRIALS, RecordFolder
from profiler.storage.tables.rows import record_row
from profiler.storage.tables.schema import MONITORED_TABLES, SCRIPT_TABLES, TABLES
from profiler.storage.sweep_tables.tables import read_tables, write_tables
from dataclasses import replace

folder = Path({str(ROOT)!r}, "tests/storage/written_before")
kinds = {{"trial": TRIALS, "script": SCRIPTS, "monitored": MONITORED}}
for kind, form in kinds.items():
    record = RecordFolder(folder / kind, form).read_all()[0]
    found = replace(record, outcome=replace(record.outcome, work=Work(fan_speed_percent=30.5)))
    store = RecordFolder(Path(kind), form)
    store.write(found)
    print(record.outcome.work.fan_speed_percent, store.read_all() == (found,), form.version, end=" ")
    print(record_row(found)["fan_speed_percent"])
for columns in (TABLES["runs"], SCRIPT_TABLES["scripts"], MONITORED_TABLES["monitored"]):
    print(*[(each.unit, each.meaning, each.null) for each in columns if each.name == "fan_speed_percent"])
write_tables(Path("trial"), RecordFolder(Path("trial"), TRIALS).read_all(), {{}})
print(read_tables(Path("trial")).runs["fan_speed_percent"].tolist())
""",
    printed="".join(f"None True {kind.version + 1} 30.5\n" for kind in (TRIALS, SCRIPTS, MONITORED))
    + "('percent', 'mean speed of the fans', 'the card has none')\n" * 2
    + "('percent', 'mean speed of the fans', 'a command was watched from outside; or the card has none')\n"
    + "[30.5]\n",
)
