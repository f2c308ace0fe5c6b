"""The page in the browser without one: what is packed, what the form offers, and the commands that the page asks."""

import importlib.util
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from maintenance.site import runtime
from maintenance.site.__main__ import CATALOGUE, CORE, OFFLINE, PAGE, TRUST, build
from maintenance.site.catalogue import GROUPS, SLIDERS, catalogue
from maintenance.site.packed import packed
from maintenance.site.runtime import RUNTIME, VERSION, RuntimeFetchError, fetch_runtime
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_USAGE
from profiler.domain.trials.trial import SPEC_KEYS
from profiler.estimate.main import answer

JOB = ["model=qwen2.5-7b", "tuning=lora"]
MOST_CORE_BYTES = 1_200_000


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """`run.py` as the browser runs it, in a folder of the test."""
    spec = importlib.util.spec_from_file_location("run_in_the_browser", PAGE / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path / "job")
    monkeypatch.chdir(tmp_path)
    return lambda words, files=None: json.loads(module.run(json.dumps(words), files))


def test_the_page_asks_the_commands(asked):
    found = asked(["estimate", *JOB])
    assert found == {"code": 0, "out": answer(JOB), "err": ""}
    assert asked(["estimate", *JOB]) == found, "a second time in the same folder"


def test_files_are_there_for_one_command_only(asked):
    files = {"grpo.yaml": b"model_name_or_path: Qwen/Qwen2.5-3B\n", "../../away.yaml": b"x: 1\n"}
    assert "qwen2.5-3b" in asked(["estimate", "config=grpo.yaml"], files)["out"]
    again = asked(["estimate", "config=grpo.yaml"])
    assert (again["code"], again["out"]) == (EXIT_USAGE, "")
    assert not Path("../away.yaml").exists()


def test_a_wrong_word_is_a_message_and_no_error(asked):
    found = asked(["estimate", "modle=x"])
    assert (found["code"], found["out"]) == (EXIT_USAGE, "")
    assert "Did you mean 'model'" in found["err"]


def test_what_is_packed_answers_without_anything_else(tmp_path):
    content = packed()
    assert len(content) < MOST_CORE_BYTES
    assert content == packed(), "equal sources, equal bytes"
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(tmp_path / "core")
    (tmp_path / "oom.log").write_text(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB"
    )
    program = (
        f"import sys; sys.path = [{str(tmp_path / 'core')!r}, *[p for p in sys.path if 'site-packages' not in p]]; "
        "from profiler.console import main; sys.exit(main(sys.argv[1:]))"
    )
    for words in (
        ["estimate", *JOB], ["solve", "gpu", *JOB], ["advise", "model=qwen2.5-7b", "gpu=4090"],
        ["advise", "oom=oom.log"],
        ["solve", "num_generations,max_completion_length", *JOB, "confirm=false"], ["replay", "--help"],
    ):  # fmt: skip
        command = [sys.executable, "-I", "-S", "-c", program, *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert (done.returncode, done.stderr) == (0, ""), words


def test_the_form_has_keys_of_a_trial_and_their_words():
    found = catalogue()
    names = [key["name"] for group in found["groups"] for key in group["keys"]]
    assert len(names) == len(set(names))
    assert set(names) <= set(SPEC_KEYS)
    assert set(SLIDERS) <= set(names) == {name for group in GROUPS.values() for name in group}
    assert {card["name"] for card in found["cards"]} == set(KNOWN_GPUS)
    assert all(key["words"] for group in found["groups"] for key in group["keys"] if key["kind"] == "choice")
    assert all(re.fullmatch("#[0-9A-Fa-f]{6}", each["colour"]) for each in found["categories"])


def test_every_id_of_the_scripts_is_in_the_page():
    ids = set(re.findall(r'id="([^"]+)"', (PAGE / "index.html").read_text()))
    scripts = "".join(path.read_text() for path in PAGE.glob("*.js"))
    assert set(re.findall(r'\bat\("([^"]+)"\)', scripts)) <= ids
    assert "innerHTML" not in scripts, "texts of others are set as text"
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", scripts + (PAGE / "index.html").read_text())


def test_the_folder_has_all_files_and_names_them(tmp_path):
    made = tmp_path / "runtime"
    made.mkdir()
    for name in RUNTIME:
        (made / name).write_bytes(b"x")
    build(tmp_path / "site", runtime=made)
    (tmp_path / "site" / "old.js").touch()
    sizes = build(tmp_path / "site", runtime=made)
    assert {*RUNTIME, CORE, CATALOGUE, OFFLINE, TRUST, "index.html", "worker.js"} <= set(sizes)
    assert "old.js" not in sizes
    assert set(json.loads((tmp_path / "site" / OFFLINE).read_text())) == set(sizes) - {OFFLINE}
    assert 'href="trust.md"' not in (tmp_path / "site" / TRUST).read_text()


def test_another_archive_of_npm_is_refused(tmp_path):
    archive = tmp_path / f"pyodide-{VERSION}.tgz"
    archive.write_bytes(b"another")
    with pytest.raises(RuntimeFetchError, match="its SHA-512 is"):
        fetch_runtime(tmp_path)
    assert not archive.exists()


def test_a_machine_without_npm_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime.shutil, "which", lambda _: None)
    with pytest.raises(RuntimeFetchError, match=r"npm is missing: .* Install Node\.js\."):
        fetch_runtime(tmp_path)
