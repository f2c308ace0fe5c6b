"""The hub with and without a network: a server of this machine plays it."""

import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from profiler.storage.foreign import hub
from profiler.storage.foreign.hub import HubError, cached_file, find_in_cache, hub_file, hub_settings

COMMIT = "a" * 40
CONFIG = json.dumps({"model_type": "llama"}).encode()


class Server(ThreadingHTTPServer):
    """A hub that notes what it is asked, and answers from `paths`."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None]] = []
        self.paths: dict[str, tuple[int, dict[str, str], bytes]] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def has(self, content=CONFIG, *, code=200, path="/a/b/resolve/main/config.json", **headers):
        sent = {"X-Repo-Commit": COMMIT, "ETag": '"123abc"', **{key.replace("_", "-"): headers[key] for key in headers}}
        self.paths[path] = (code, sent, content)


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(200)
        self.end_headers()

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        code, headers, content = self.server.paths.get(self.path, (404, {}, b""))
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def started():
    servers = []

    def start():
        server = Server()
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def server(started, monkeypatch, tmp_path):
    found = started()
    monkeypatch.setenv("HF_ENDPOINT", found.address)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "0")
    hub._silence.cache_clear()
    yield found
    hub._silence.cache_clear()


def test_a_file_is_downloaded_into_the_cache_of_the_client(server, tmp_path):
    from huggingface_hub import try_to_load_from_cache

    server.has()
    path = hub_file("a/b", "config.json")
    assert path.read_bytes() == CONFIG
    assert server.asked == [("/a/b/resolve/main/config.json", "Bearer secret")]
    assert try_to_load_from_cache("a/b", "config.json", cache_dir=tmp_path / "hub") == str(path)
    assert cached_file("a/b", "config.json") == path


def test_a_newer_file_takes_the_place_of_the_one_in_the_cache(server):
    server.has()
    hub_file("a/b", "config.json")
    server.has(b"{}", X_Repo_Commit="b" * 40, ETag='W/"456"')
    assert hub_file("a/b", "config.json").read_bytes() == b"{}"
    assert cached_file("a/b", "config.json").read_bytes() == b"{}"


def test_offline_the_cache_is_read_and_nothing_is_asked(server, monkeypatch):
    server.has()
    hub_file("a/b", "config.json")
    server.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub_file("a/b", "config.json").read_bytes() == CONFIG
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set, and the local cache has no copy"):
        hub_file("a/c", "config.json")
    assert server.asked == []


def test_without_an_answer_the_cache_is_read(server, monkeypatch):
    server.has()
    hub_file("a/b", "config.json")
    monkeypatch.setattr(hub, "_answer_problem", lambda endpoint: "the hub cannot be reached (no route)")
    hub._silence.cache_clear()
    assert hub_file("a/b", "config.json").read_bytes() == CONFIG
    with pytest.raises(HubError, match=r"cannot be reached \(no route\), and the local cache has no copy"):
        hub_file("a/c", "config.json")


@pytest.mark.parametrize(("code", "says"), [(401, "HF_TOKEN"), (403, "gated"), (404, "does not exist")])
def test_a_refusal_is_named(server, code, says):
    server.has(b"", code=code)
    with pytest.raises(HubError, match=f"answers {code}: .*{says}"):
        hub_file("a/b", "config.json")


def test_a_hub_that_is_out_of_order_leaves_the_cache(server):
    server.has()
    hub_file("a/b", "config.json")
    server.has(b"", code=503)
    assert hub_file("a/b", "config.json").read_bytes() == CONFIG


def test_the_token_stays_with_the_hub(server, started):
    other = started()
    other.has(path="/there")
    server.has(b"", code=302, Location=f"{other.address}/there")
    assert hub_file("a/b", "config.json").read_bytes() == CONFIG
    assert other.asked == [("/there", None)]


def test_a_renamed_model_is_asked_for_with_the_token(server):
    server.has(path="/new/b/resolve/main/config.json")
    server.has(b"", code=307, Location="/new/b/resolve/main/config.json")
    hub_file("a/b", "config.json")
    assert server.asked[-1] == ("/new/b/resolve/main/config.json", "Bearer secret")


@pytest.mark.parametrize(
    ("content", "headers", "says"),
    [
        (b"x" * 11 * 2**20, {}, "larger than 10 MiB"),
        (CONFIG, {"Content_Length": "1000"}, "ended early"),
        (CONFIG, {"X_Repo_Commit": "../../x"}, "not known"),
        (CONFIG, {"X_Repo_Commit": ".."}, "not known"),
        (CONFIG, {"ETag": '"../x"'}, "not known"),
        (b"", {"Location": "ftp://127.0.0.1/x"}, "redirected to ftp"),
    ],
)
def test_what_the_hub_must_not_do(server, tmp_path, content, headers, says):
    server.has(content, code=302 if "Location" in headers else 200, **headers)
    with pytest.raises(HubError, match=says):
        hub_file("a/b", "config.json")
    assert not list(tmp_path.rglob("config.json"))


def test_a_hub_that_never_comes_to_the_end_is_given_up(server, tmp_path, monkeypatch):
    sent = []

    def slowly(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        with suppress(OSError):
            while len(sent) < 1000:
                handler.wfile.write(b"x")
                sent.append(b"x")
                time.sleep(0.01)

    monkeypatch.setattr(Handler, "do_GET", slowly)
    monkeypatch.setattr(hub, "_DOWNLOAD_S", 0.2)
    with pytest.raises(HubError, match=r"the download took longer than 0\.2 s"):
        hub_file("a/b", "config.json")
    assert 0 < len(sent) < 1000
    assert not list(tmp_path.rglob("config.json"))


@pytest.mark.parametrize("hub_id", ["../b", "a/../b", "a/b/c", "a b", "a--b", ""])
def test_what_is_no_hub_id_is_not_asked_for(server, hub_id):
    with pytest.raises(HubError, match="is not of the form"):
        hub_file(hub_id, "config.json")
    assert cached_file(hub_id, "config.json") is None
    assert server.asked == []


@pytest.mark.parametrize("endpoint", ["huggingface.co", "", "ftp://x", "http://", "http://[x", "http://a:99999"])
def test_an_address_without_a_scheme_or_host_is_named(server, monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(HubError, match="must be an address such as https"):
        hub_file("a/b", "config.json")


def test_the_settings_are_those_of_the_client(tmp_path):
    (tmp_path / "token").write_text("kept\n")
    found = hub_settings({"HF_HOME": str(tmp_path), "TRANSFORMERS_OFFLINE": "yes", "HF_ENDPOINT": "https://m/"})
    assert (found.endpoint, found.is_offline, found.folder, found.token) == (
        "https://m",
        True,
        tmp_path / "hub",
        "kept",
    )
    assert hub_settings({"HF_HOME": str(tmp_path), "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}).token == ""
    assert hub_settings({"XDG_CACHE_HOME": "/x"}).folder.as_posix() == "/x/huggingface/hub"
    assert find_in_cache(tmp_path / "nothing", "a/b", "config.json") is None
