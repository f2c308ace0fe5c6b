"""`sky launch --dryrun` of examples/machines/sky.yaml, with an AWS that moto plays on this machine.

`python tests/stress/sky_dryrun.py` needs skypilot[aws] and moto[server] in its environment (`make machines`) and rsync.
Its home folder is a temporary one: credentials are invented, and so are the prices of the catalog, which is not loaded.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import boto3

ROOT = Path(__file__).parents[2]
TASK = "examples/machines/sky.yaml"
REGION = "us-east-1"
SKY_PORT = 46580
_STARTS_WITHIN_S = 60.0

_VMS = f"""\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch
p5.4xlarge,H100,1.0,16.0,256.0,,6.88,2.50,{REGION},use1-az1,x86_64
p5.4xlarge,H100,1.0,16.0,256.0,,6.88,2.40,{REGION},use1-az2,x86_64
g6.xlarge,L4,1.0,4.0,16.0,,0.80,0.30,{REGION},use1-az1,x86_64
m6i.2xlarge,,,8.0,32.0,,0.384,0.15,{REGION},use1-az1,x86_64
"""
_QUOTAS = "InstanceType,OnDemandInstanceCode,SpotInstanceCode\n"
_ACCELERATORS = 'AcceleratorName,Clouds\nH100,"[""AWS""]"\nL4,"[""AWS""]"\n'
_EXPECTED = ("Considered resources (8 nodes)", "p5.4xlarge[Spot]", "H100:1", "19.20", "Dryrun finished.")
"""The eight cheaper spot instances of the catalog: 8 * 2.40 an hour."""


def command_of(text: str) -> list[str]:
    """Return the command that the first line of the task states, as a dry run that asks nothing."""
    words = text.splitlines()[0].removeprefix("# ").split()
    assert words[:2] == ["sky", "launch"] and words[-1] == TASK, words
    return [*words[:2], "--yes", "--dryrun", *words[2:]]


@contextmanager
def moto_server(port: int) -> Iterator[None]:
    """Run moto's server during the block."""
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ends_s = time.monotonic() + _STARTS_WITHIN_S
        while not _listens(port):
            if time.monotonic() > ends_s:
                sys.exit("moto's server does not start.")
            time.sleep(0.2)
        yield
    finally:
        server.terminate()
        server.wait()


def environment(home: Path, port: int) -> Mapping[str, str]:
    """Return the variables of SkyPilot's commands: nothing of the user's own."""
    tools = str(Path(sys.executable).parent)
    return {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(home),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": REGION,
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }


def write_home(home: Path, image: str) -> None:
    """Write credentials and a catalog of four machines."""
    from sky.skylet.constants import CATALOG_SCHEMA_VERSION

    catalog = home / ".sky" / "catalogs" / CATALOG_SCHEMA_VERSION
    columns = "Tag,Region,OS,OSVersion,ImageId,CreationDate"
    images = f"{columns}\nskypilot:custom-gpu-ubuntu-cuda13,{REGION},ubuntu,22.04,{image},1\n"
    files = {
        home / ".aws" / "credentials": "[default]\naws_access_key_id = testing\naws_secret_access_key = testing\n",
        home / ".aws" / "config": f"[default]\nregion = {REGION}\n",
        catalog / "aws" / "vms.csv": _VMS,
        catalog / "aws" / "images.csv": images,
        catalog / "aws" / "instance_quota_mapping.csv": _QUOTAS,
        catalog / "common" / "accelerators.csv": _ACCELERATORS,
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def image_of(port: int) -> str:
    """Return an image of a machine that moto knows."""
    client = boto3.client(
        "ec2",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name=REGION,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    wanted = [{"Name": "root-device-type", "Values": ["ebs"]}, {"Name": "architecture", "Values": ["x86_64"]}]
    return str(client.describe_images(Filters=wanted)["Images"][0]["ImageId"])


def main() -> int:
    """Run the dry run, print what SkyPilot says, and return the exit code."""
    if shutil.which("rsync") is None:
        sys.exit("rsync is not installed, which SkyPilot needs.")
    if _listens(SKY_PORT):
        sys.exit(f"Port {SKY_PORT} is in use: an own server of SkyPilot would be asked. Stop it with: sky api stop")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, moto_server(port):
        home = Path(folder)
        write_home(home, image_of(port))
        variables = environment(home, port)
        try:
            _run(["sky", "check", "aws"], variables)
            shown = _run(command_of((ROOT / TASK).read_text()), variables)
        finally:
            _run(["sky", "api", "stop"], variables)
    missing = [text for text in _EXPECTED if text not in shown]
    print(f"{len(_EXPECTED) - len(missing)} passed, {len(missing)} failed", *missing)
    return 1 if missing else 0


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _run(words: list[str], variables: Mapping[str, str]) -> str:
    done = subprocess.run(
        words, env=variables, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(done.stdout, flush=True)
    if done.returncode:
        print(f"{' '.join(words)} ended with {done.returncode}.")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
