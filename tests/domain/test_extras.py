"""What a command says about an extra that is missing, by how the program was installed."""

import json
import sys

import pytest

from profiler.domain.errors import UsageError
from profiler.domain.machines import extras
from profiler.domain.machines.extras import Extra, install_hint, refuse_former


class Installed:
    """A distribution."""

    version = "0.1.0"

    def __init__(self, name="grpo-vram", direct_url=None, installer="pip"):
        self.installer = installer
        self.name = name
        self.direct_url = direct_url
        self.requires = (
            "pyyaml>=6",
            'rich>=13; extra == "sweep"',
            'grpo-vram[sweep]; extra == "simulate"',
            'torch>=2; extra == "simulate"',
        )

    def read_text(self, name):
        if name == "INSTALLER":
            return f"{self.installer}\n"
        return None if self.direct_url is None else json.dumps(self.direct_url)


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Install distributions, outside of a clone."""
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site" / "profiler" / "domain" / "machines" / "extras.py"))

    def install(*found):
        monkeypatch.setattr(extras, "_found", {each.name: each for each in found}.get)

    return install


def test_from_a_clone(monkeypatch, installed, tmp_path):
    (tmp_path / "site" / "pyproject.toml").parent.mkdir()
    (tmp_path / "site" / "pyproject.toml").write_text("")
    installed()
    assert install_hint(Extra.SWEEP) == f"Install the extra 'sweep': pip install -e '{tmp_path}/site[sweep]'."


def test_from_a_wheel(installed, tmp_path):
    wheel = tmp_path / "grpo_vram-0.1.0-py3-none-any.whl"
    wheel.write_text("")
    installed(Installed(direct_url={"url": wheel.as_uri(), "archive_info": {}}))
    assert install_hint(Extra.SWEEP) == f"Install the extra 'sweep': pip install '{wheel}[sweep]'."
    wheel.unlink()
    assert install_hint(Extra.SWEEP) == "Install the extra 'sweep': pip install 'rich>=13'."


def test_from_a_repository(installed):
    noted = {"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    installed(Installed(direct_url=noted))
    assert install_hint(Extra.SWEEP).endswith("pip install 'grpo-vram[sweep] @ git+https://example.org/x.git@abc'.")


@pytest.mark.parametrize(("on_index", "named"), [(False, "'rich>=13' 'torch>=2'"), (True, "'grpo-vram[simulate]'")])
def test_from_nowhere(monkeypatch, installed, on_index, named):
    monkeypatch.setattr(extras, "ON_INDEX", on_index)
    installed(Installed())
    assert install_hint(Extra.SIMULATE) == f"Install the extra 'simulate': pip install {named}."


def test_environments_of_uv_may_have_no_pip(monkeypatch, installed, tmp_path):
    wheel = tmp_path / "a.whl"
    wheel.write_text("")
    installed(Installed(direct_url={"url": wheel.as_uri(), "archive_info": {}}, installer="uv"))
    monkeypatch.setattr(extras.sys, "executable", "/env/bin/python")
    monkeypatch.setattr(extras.sys, "prefix", "/env")
    assert install_hint(Extra.SWEEP).endswith(f": uv pip install --python '/env/bin/python' '{wheel}[sweep]'.")
    monkeypatch.setattr(extras.sys, "prefix", "/home/me/.cache/uv/archive-v0/x1")
    assert install_hint(Extra.SWEEP).endswith(f": uvx --from '{wheel}[sweep]' grpo-vram.")


@pytest.mark.parametrize("notes", ["grpo_vram_profiler-0.1.0.dist-info", "grpo_vram_profiler.egg-info"])
def test_the_distribution_of_the_former_name_is_a_conflict(monkeypatch, tmp_path, notes):
    def note(folder, name, version):
        path = tmp_path / folder
        (path / ("METADATA" if folder.endswith("dist-info") else "PKG-INFO")).parent.mkdir(parents=True)
        (path / ("METADATA" if folder.endswith("dist-info") else "PKG-INFO")).write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )

    monkeypatch.setattr(sys, "path", [str(tmp_path / "new"), str(tmp_path / "absent"), str(tmp_path / "old")])
    note("new/grpo_vram-0.2.0.dist-info", "grpo-vram", "0.2.0")
    refuse_former()
    note(f"old/{notes}", "grpo-vram-profiler", "0.1.0")
    with pytest.raises(UsageError, match=r"installation=grpo-vram-profiler 0\.1\.0: has the same files as grpo-vram"):
        refuse_former()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "old")])
    refuse_former()
