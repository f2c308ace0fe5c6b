"""What is missing is said in one sentence."""

import sys
from pathlib import Path

import pytest

from profiler.worker.scripts.script_faults import sentence_of

PYTHON = sys.executable

MISSING = {
    "import no_such_package": (
        f"the package no_such_package is missing in {PYTHON}: install it there, or name another python= that has it"
    ),
    "from no_such_package.inner import name": f"the package no_such_package is missing in {PYTHON}: install it there",
    "import importlib.metadata; importlib.metadata.version('no-such-package')": (
        f"the package no-such-package is missing in {PYTHON}"
    ),
    "raise ImportError('\\nAutoThing requires the torchaudio library but it was not found.\\nMore lines.')": (
        f"the package torchaudio is missing in {PYTHON}"
    ),
    "import transformers\ntransformers.no_such_function()": "transformers 5.",
    "import transformers\ntransformers.GenerationConfig().no_such_field": "transformers 5.",
    "from argparse import ArgumentParser as P\np = P()\np.add_argument('--rows')\np.add_argument('--rows')": (
        "a library has the option --rows too: the script was written for another version"
    ),
    "import transformers\nfrom transformers import NoSuchClass": "transformers 5.",
    "from transformers import Seq2SeqTrainingArguments as Made\nMade(output_dir='x', no_such_argument=1)": (
        "transformers 5."
    ),
    "open('data/rows.bin')": f"the file data/rows.bin is missing in {Path.cwd()}: the script reads it",
    "open('/no/such/rows.bin')": "the file /no/such/rows.bin is missing: the script reads it",
    "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9/rows.txt')": (
        "http://127.0.0.1:9/rows.txt is not on this machine, and the network does not answer"
    ),
    "raise RuntimeError('No a.gz:\\nTried https://files.org/a/, got:\\n<urlopen error [Errno -2] Name>')": (
        "https://files.org/a/ is not on this machine, and the network does not answer"
    ),
    "try:\n    import no_such_package\nexcept ImportError as error:\n    raise RuntimeError('lazy') from error": (
        "the package no_such_package is missing"
    ),
}


@pytest.mark.parametrize("text", MISSING)
def test_what_is_missing_is_named(text: str) -> None:
    with pytest.raises(Exception) as caught:
        exec(text, {})
    sentence = sentence_of(caught.value)
    assert sentence.startswith(MISSING[text])
    assert "\n" not in sentence


def test_the_version_that_lacks_a_name_is_said() -> None:
    with pytest.raises(ImportError) as caught:
        exec("from transformers import NoSuchClass", {})
    assert sentence_of(caught.value).endswith(
        "has no NoSuchClass in transformers: the script was written for another version; "
        "name another python= that has it"
    )


def test_an_assertion_without_a_message_is_shown(tmp_path: Path) -> None:
    script = tmp_path / "data.py"
    script.write_text("rows = []\nassert rows\n")
    with pytest.raises(AssertionError) as caught:
        exec(compile(script.read_text(), str(script), "exec"), {})
    caught.value.args = ()
    assert sentence_of(caught.value) == "AssertionError: assert rows (data.py:2)"


def test_an_attribute_that_a_tensor_lacks_is_the_scripts_own_mistake() -> None:
    with pytest.raises(AttributeError) as caught:
        exec("import torch\ntorch.ones(1).no_such_attribute", {})
    assert sentence_of(caught.value) == "AttributeError: 'Tensor' object has no attribute 'no_such_attribute'"


def test_an_address_of_the_hub_is_named(tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download

    with pytest.raises(Exception) as caught:
        hf_hub_download("owner/model", "weights.bin", cache_dir=tmp_path, local_files_only=True)
    assert sentence_of(caught.value) == (
        "weights.bin of owner/model on the hub is not on this machine, and the network does not answer"
    )


def test_another_error_is_kept_as_it_is() -> None:
    assert sentence_of(ValueError("shape mismatch")) == "ValueError: shape mismatch"
    assert sentence_of(ValueError("no rows:\n  tried a\n  tried b")) == "ValueError: no rows: tried a tried b"


def test_an_error_that_was_handled_is_no_reason() -> None:
    text = "try:\n    import no_such_package\nexcept ImportError:\n    pass\nraise ValueError('x')"
    with pytest.raises(ValueError, match="x") as caught:
        exec(text, {})
    assert sentence_of(caught.value) == "ValueError: x"
