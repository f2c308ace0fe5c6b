"""Objects of S3, by the server of moto: the same as those of a folder. Skipped without the extra s3 and moto."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.domain.address import address_of
from profiler.storage.leases import Leases
from profiler.storage.shared_store import shared_faults

pytest.importorskip("s3fs", reason="the extra s3 is not installed")
pytest.importorskip("moto.server", reason="moto[server,s3] is not installed")

sys.path.insert(0, str(Path(__file__).parents[1] / "stress"))

from shared_store import BUCKET, CREDENTIALS, make_bucket, start_moto

from profiler.storage.cloud_objects import CloudObjects


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    before = dict(os.environ)
    server, port = start_moto(tmp_path_factory.mktemp("moto"))
    make_bucket(port)
    yield f"s3://{BUCKET}"
    server.kill()
    server.wait()
    os.environ.clear()
    os.environ.update(before)


def test_objects(s3):
    objects = CloudObjects(address_of(f"{s3}/a/b"))
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


def test_claims(s3, monkeypatch):
    monkeypatch.setattr(Leases, "_start_renewing", lambda self: None)
    objects = CloudObjects(address_of(f"{s3}/claims"))
    one, other = (Leases(objects=objects, impatient=objects, lease_s=60.0) for _ in range(2))
    lease = one.take("0" * 16)
    assert other.take("0" * 16) is None
    one.renew_all()
    assert one.is_held(lease)
    one.end(lease)
    assert objects.list("claims/") == {}


def test_faults_are_sentences_in_time(s3, monkeypatch):
    assert shared_faults(address_of(f"{s3}/new"), writes=True) == []
    (fault,) = shared_faults(address_of("s3://no-such-bucket/a"), writes=True)
    assert "results cannot be written there (The specified bucket does not exist)" in fault.sentence()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    (fault,) = shared_faults(address_of(f"{s3}/a"), writes=True)
    assert "Could not connect to the endpoint URL" in fault.sentence()


def test_without_credentials_the_sentence_says_so(s3):
    code = (
        "from profiler.storage.shared_store import shared_faults; from profiler.domain.address import address_of; "
        "print(*(fault.sentence() for fault in shared_faults(address_of('s3://bucket/a'), writes=True)))"
    )
    kept = {name: value for name, value in os.environ.items() if name not in CREDENTIALS}
    environment = {**kept, "AWS_EC2_METADATA_DISABLED": "true"}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "credentials" in said.splitlines()[0].lower()
    assert len(said.splitlines()) == 1
