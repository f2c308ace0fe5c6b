"""The hub with and without a network; no test asks it."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from profiler.storage.foreign import hub
from profiler.storage.foreign.hub import HubError, hub_file


@pytest.fixture
def client(monkeypatch, tmp_path):
    """A client that notes what it is asked; its hub answers unless `silent` is set."""

    class Client:
        asked: list[str] = []  # noqa: RUF012
        silent = ""
        cached: str | None = None

        def download(self, hub_id, name, **how):
            self.asked.append(f"{hub_id}/{name}")
            return str(tmp_path / "downloaded")

    found = Client()
    Client.asked = []
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", found.download)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda hub_id, name: found.cached)
    monkeypatch.setattr(hub, "_answer_problem", lambda endpoint: found.silent)
    hub._silence.cache_clear()
    yield found
    hub._silence.cache_clear()


def test_a_hub_that_answers_is_asked_for_the_file(client, tmp_path):
    assert hub_file("a/b", "config.json") == tmp_path / "downloaded"
    assert client.asked == ["a/b/config.json"]


@pytest.mark.parametrize("cached", [None, "/cache/config.json"])
def test_without_an_answer_the_cache_is_read_and_nothing_is_asked(client, cached):
    client.silent, client.cached = "the hub cannot be reached (no route)", cached
    if cached:
        assert hub_file("a/b", "config.json") == Path(cached)
    else:
        with pytest.raises(HubError, match=r"cannot be reached \(no route\), and the local cache has no copy"):
            hub_file("a/b", "config.json")
    assert client.asked == []


def test_offline_mode_is_respected(client, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set, and the local cache has no copy"):
        hub_file("a/b", "config.json")
    assert client.asked == []


@pytest.mark.parametrize("endpoint", ["huggingface.co", "", "ftp://x", "http://", "http://[x", "http://a:99999"])
def test_an_address_without_a_scheme_or_host_is_named(client, monkeypatch, endpoint):
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    with pytest.raises(HubError, match="must be an address such as https"):
        hub_file("a/b", "config.json")
    assert client.asked == []
