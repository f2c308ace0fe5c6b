"""What else has to change for a new card, family, column or sharding mode, counted in a scratch copy of the program.

A card is one row of one file. A family is one row of one file; only where its layers differ, formulas follow. A column
of the tables is one field of an outcome, and what fills it. A sharding mode that `estimate`, `solve` and `advise`
answer is a new file with what differs from one GPU, and its name in three others; that it runs as well is a matter of
`training/arguments.py`.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from profiler.domain.architectures.families import FAMILIES
from profiler.domain.cards.gpu import KNOWN_GPUS
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
from profiler.emulation.card.cards import card_description
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
from profiler.analytical.formulas.sizes.term import Term
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
            before="from profiler.analytical.timeline.sharding.replicated import Replicated",
            row="from profiler.analytical.timeline.sharding.halved import Halved\n",
        ),
        Row(
            file="profiler/rendering/estimate/table.py",
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
    + "('percent', 'mean speed of the fans', 'the card has none')\n" * 3
    + "[30.5]\n",
)


@pytest.mark.parametrize(
    ("change", "files"),
    [(CARD, 1), (FAMILY, 1), (COLUMN, 1), (SHARDING, 4)],
    ids=["card", "family", "column", "sharding"],
)
def test_a_change_needs_no_other_file(change, files, tmp_path):
    assert len({row.file for row in change.rows}) == files
    shutil.copytree(ROOT / "profiler", tmp_path / "profiler", ignore=shutil.ignore_patterns("__pycache__"))
    for row in change.rows:
        file = tmp_path / row.file
        text = file.read_text(encoding="utf-8") if row.before else ""
        assert text.count(row.before) == 1
        file.write_text(text.replace(row.before, row.row + row.before), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", change.program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == (change.printed, 0), ran.stderr


def _words(path: Path) -> Iterator[str]:
    """Return the words of all strings of a module that are not docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield from (node.value, *node.value.split())


def _other_files_that_name(names: set[str], own: set[str]) -> set[str]:
    files = {path.relative_to(ROOT / "profiler").as_posix(): path for path in (ROOT / "profiler").rglob("*.py")}
    return {name for name, path in files.items() if name not in own and names & set(_words(path))}


def test_other_files_name_cards_only_as_a_default_or_an_example():
    names = {text for gpu in KNOWN_GPUS.values() for text in (gpu.name, gpu.title, *gpu.other_names)}
    assert _other_files_that_name(names, {"domain/cards/gpu.py"}) == {
        "analysis/findings/limits.py",  # the cards whose memory is drawn as a line
        "analytical/formulas/engine_buffers.py",  # the default card
        "config/trials/specification.py",
        "domain/trials/trial.py",
        "emulation/command.py",
        "replay/command.py",  # a card in an example
    }


def test_other_files_name_families_only_in_models():
    models = {path.relative_to(ROOT / "profiler").as_posix() for path in (ROOT / "profiler/domain/models").glob("*.py")}
    own = {
        "domain/architectures/families.py",
        "domain/models/builtin_models.py",
        "substitutes/checkpoints/known_configs.py",
        *models,
    }
    assert _other_files_that_name(set(FAMILIES), own) == {
        "domain/architectures/family.py",  # a kind of rotary positions that is called by its only family
    }
