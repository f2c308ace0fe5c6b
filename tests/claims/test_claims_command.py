"""`python -m profiler.claims`: stored trials, estimates, pages, and the kept verdicts."""

import json
import sys
from pathlib import Path

import builders
import pytest

from maintenance.counted import counted_configurations
from profiler.analysis.claim_trials import StoredTrials
from profiler.analysis.verdicts import ClaimVerdict
from profiler.claims.figures import ClaimFigures
from profiler.claims.main import judge_all, kept_scripts, main, stored_trials
from profiler.config.claims.settings import keys_text, spec_of
from profiler.domain.claims import By, Configuration, End, Quantity
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.domain.memory import Origin
from profiler.domain.runs.outcome import Status
from profiler.rendering.claims import claims_page
from profiler.rendering.document import RenderedFigure
from profiler.rendering.layouts.markdown import markdown
from profiler.storage.foreign.published import read_counted, read_looked_up, read_published_claims
from profiler.storage.sweep_tables.tables import read_tables

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"


def trial(**keys):
    return Configuration(by=By.TRIAL, keys={"model": "qwen2.5-0.5b", **keys}, gpu=None)


@pytest.fixture(scope="module")
def claims():
    return read_published_claims()


@pytest.fixture(scope="module")
def kept(claims):
    return judge_all(claims, stored_trials(REFERENCE), kept_scripts(REFERENCE))


@pytest.fixture
def folder(tmp_path):
    specs = [builders.spec(model="qwen2.5-0.5b"), builders.spec(model="qwen2.5-0.5b", num_generations=8)]
    return builders.write_folder(tmp_path / "results" / "claims", builders.records(specs, grid="claims"))


def stored(folder):
    tables = read_tables(folder)
    return StoredTrials(tables.runs, tables.shape)


def test_a_stored_trial_answers_before_the_closed_form(folder):
    (found,) = ClaimFigures([stored(folder)], {})([trial(beta=0.04)], Quantity.PEAK_ALLOCATED)
    assert (found.origin, found.end) == (Origin.SIMULATED, End.FITS)
    assert found.value in set(read_tables(folder).runs["peak_allocated_bytes"])


def test_a_pair_has_one_origin(folder):
    figures = ClaimFigures([stored(folder)], {})
    pair = figures([trial(beta=0.04), trial(num_generations=2, beta=0.04)], Quantity.PEAK_ALLOCATED)
    assert [each.origin for each in pair] == [Origin.ESTIMATED, Origin.ESTIMATED]


def test_a_trial_that_ran_out_of_memory_has_what_it_needs(claims):
    """Full fine-tuning of 8B in the kept results: 80 GB are not enough, and the need is known."""
    (claim,) = [claim for claim in claims if claim.id == "blog-table"]
    found = StoredTrials(*_oxen()).figure(spec_of(claim.configurations[3]), Quantity.PEAK_ALLOCATED)
    runs = _oxen()[0]
    (row,) = runs[
        (runs["model"] == "llama-3.1-8b") & (runs["optim"] == "adamw_torch") & (runs["tuning"] == "full")
    ].iloc
    assert found is not None
    assert found.end is End.OOM
    assert found.value == row["required_allocated_bytes"] > row["peak_allocated_bytes"]


def test_a_trial_whose_need_is_unknown_says_so(tmp_path):
    spec = builders.spec(model="qwen2.5-0.5b")
    record = builders.record(spec, outcome=builders.outcome_of(Status.OOM))
    found = stored(builders.write_folder(tmp_path / "claims", [record])).figure(spec, Quantity.PEAK_ALLOCATED)
    assert found is not None
    assert found.problem == "its trial ran out of memory, and what it needs is unknown"


def _oxen():
    tables = read_tables(REFERENCE / "oxen_2025")
    return tables.runs, tables.shape


def test_the_kept_run_of_a_script_answers_with_its_origin(kept):
    (judged,) = [each for each in kept if each.claim.id == "blog-script"]
    assert judged.origins == (Origin.EMULATED,)
    assert judged.findings[0].found == pytest.approx(25.2, abs=0.05)


def test_the_pages_are_written_next_to_the_trials(folder, capsys):
    assert main([f"results_dir={folder.parent}", "source=guide-verl"]) == EXIT_OK
    out = capsys.readouterr().out
    assert "utilisation-pool: holds" in out
    assert "blog-table" not in out
    page = (folder / "claims.md").read_text(encoding="utf-8")
    assert "blog-table" in page
    assert "<html" in (folder / "claims.html").read_text(encoding="utf-8")
    assert (folder / "figures" / "claims.svg").is_file()
    assert not (folder / "report.md").exists(), "the report of the sweep is left alone"


def test_json_has_every_setting(folder, capsys):
    assert main([f"results_dir={folder.parent}", "claim=guide-sum", "format=json", "write=false"]) == EXIT_OK
    (found,) = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "holds only when"
    assert [each["holds"] for each in found["settings"]] == [True, False]
    assert found["settings"][1]["ours"] == 85


def test_a_damaged_folder_is_left_out_with_a_line(folder, capsys):
    other = folder.parent / "other"
    other.mkdir()
    (other / "runs.parquet").write_bytes(b"x")
    assert main([f"results_dir={folder.parent}", "claim=guide-sum", "write=false"]) == EXIT_OK
    assert "other is left out:" in capsys.readouterr().err


def test_pages_that_cannot_be_written_are_refused_before_anything_is_printed(folder, capsys):
    results = folder.parent
    folder.rename(results / "other")
    (results / "claims").write_text("a file")
    assert main([f"results_dir={results}", "claim=guide-sum"]) == EXIT_USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.endswith("is not a folder). Give write=false to print only.\n")
    assert main([f"results_dir={results}", "claim=guide-sum", "write=false"]) == EXIT_OK


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["results_dir=none"], "results_dir=none: is no folder of results."),
        (["results_dir="], "results_dir='': must be a folder"),
        (["claim=guide-bach"], "claim=guide-bach: Did you mean 'guide-batch'?"),
        (["source=guide-40"], "source=guide-40: must be one of blog-2025"),
        (["format=xml"], "format=xml: must be one of table, json"),
        (["write=maybe"], "write=maybe: must be true or false"),
        (["resultsdir=x"], "resultsdir=x: is unknown; the keys are results_dir, claim, source, format, write."),
        (["--format"], "argument=--format: is not of the form key=value. Write format=table|json."),
        (
            ["claim=guide-batch", "source=guide-40gb"],
            "claim=guide-batch: names one claim, so that source has no meaning",
        ),
    ],
)
def test_wrong_input_ends_with_exit_code_2(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == EXIT_USAGE
    assert sentence in capsys.readouterr().err


def test_the_kept_page_has_the_verdicts_of_the_kept_trials(kept):
    figure = RenderedFigure(name="claims", title="Claimed and found changes of memory", png=b"", svg=b"")
    assert (REFERENCE / "claims" / "claims.md").read_text(encoding="utf-8") == markdown(claims_page(kept, figure))


def test_every_look_up_is_kept_and_none_is_left_over(claims):
    wanted = {(claim.id, each.when) for claim in claims for each in claim.settings if claim.check == "looked_up"}
    assert set(read_looked_up()) == wanted


def test_the_work_of_every_step_is_counted_and_none_is_left_over(claims):
    wanted = {keys_text(each) for each in counted_configurations(claims)}
    assert set(read_counted()) == wanted


def test_a_bound_of_time_says_that_it_is_counted(kept):
    (judged,) = [each for each in kept if each.claim.id == "report-checkpointing-time"]
    assert judged.origins == (Origin.COUNTED,)
    # Checkpointing runs the layers once more: a third of three passes, and with LoRA, whose backward has no gradients
    # of the weights, half of two; less where other parts weigh more.
    full, lora, small = (finding.found for finding in judged.findings)
    assert 0 < small < full < 100 / 3 < lora < 50


def test_the_short_form_of_the_documentation_counts_the_kept_verdicts(kept):
    assert short_form(kept) in (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")


def test_each_cell_of_the_blogs_table_has_its_run_of_the_printed_script(kept):
    by_id = {each.claim.id: each for each in kept}
    table, scripts = by_id["blog-table"], by_id["blog-table-script"]
    assert [each.when for each in scripts.claim.settings] == [each.when for each in table.claim.settings]
    assert [each.published for each in scripts.claim.settings] == [each.published for each in table.claim.settings]
    assert scripts.origins == (Origin.EMULATED,)
    named = {str(configuration.keys["script"]) for configuration in scripts.claim.configurations}
    runs = {script: run for (script, _), run in kept_scripts(REFERENCE).items() if script in named}
    assert set(runs) == named and len(named) == 20
    # A card that ran out of memory was nearly full; one that did not has at most its 79.1 GiB.
    full = {script: run.peaks[Quantity.PEAK_DEVICE] / 84_944_093_184 for script, run in runs.items()}
    assert all(0.99 < full[script] <= 1 for script, run in runs.items() if run.end is End.OOM)
    assert sum(run.end is End.OOM for run in runs.values()) == 5 and max(full.values()) <= 1


def short_form(judged):
    """The rows of the table at the end of docs/claims.md.

    `PYTHONPATH=tests python tests/claims/test_claims_command.py` prints them.
    """
    lines = []
    for source in dict.fromkeys(each.claim.source for each in judged):
        own = [each.verdict for each in judged if each.claim.source == source]
        lines.append(f"| {source.title} | {' | '.join(str(own.count(verdict)) for verdict in ClaimVerdict)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(short_form(judge_all(read_published_claims(), stored_trials(REFERENCE), kept_scripts(REFERENCE))))
