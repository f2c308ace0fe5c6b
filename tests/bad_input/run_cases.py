"""Bad input of `python -m profiler.run`."""

from cases import BOMB, DEEP_PATH, LONG, Case, Files, Special, bad

from profiler.storage.files.typed_json import with_checksum

SCRIPT = {"train.py": "raise SystemExit('the script has run')\n"}
NEWER = with_checksum({"script_schema_version": 99, "record": {}})
KEYS = "backend, gpu, steps, num_processes, weights,"


def script(*words: str, says: str, sentences: int = 1, files: Files | None = None) -> Case:
    """Words in front of a script that exists."""
    return bad(*words, "train.py", files={**SCRIPT, **(files or {})}, says=says, sentences=sentences)


CASES = (
    bad(says="script= … name a Python file to run"),
    bad("", says="script= … name a Python file to run"),
    bad("backend=emulated", says="script= … name a Python file to run"),
    bad("--", says="script= … name a Python file to run"),
    script("-x", says="script=-x: is an option, and a script comes first"),
    bad("nosuch.py", says="script=nosuch.py: no such file"),
    script("gpu", says="script=gpu: no such file. Our keys are written as key=value."),
    script("python", says="script=python: no such file. Leave it out: python=PATH chooses it."),
    bad("folder", files={"folder/x": ""}, says="script=folder: is a folder, and a Python file is needed"),
    bad("pipe.py", files={"pipe.py": Special.FIFO}, says="script=pipe.py: is a device or a pipe"),
    bad("zero.py", files={"zero.py": Special.ZERO}, says="script=zero.py: is a device or a pipe"),
    bad("loop.py", files={"loop.py": Special.LOOP}, says="script=loop.py: cannot be read"),
    bad("train.sh", files={"train.sh": ""}, says="script=train.sh: is not a Python file (.py)"),
    bad("a\x00b.py", says="script= … cannot be read"),
    bad(LONG + ".py", says="script= … cannot be read"),
    bad(DEEP_PATH, says="script= … cannot be read"),
    bad("~nosuchuser/train.py", says="script= … cannot be read"),
    script("stesp=3", says="stesp=3: is unknown. Did you mean 'steps'?"),
    script("=3", says="=3: is unknown"),
    script("learning_rate=1", says="Arguments of the script come after its name."),
    bad("a=1", "b=2", "nosuch.py", says="a=1: … b=2: … script=nosuch.py: no such file", sentences=3),
    script("backend=gpu", says="backend=gpu: must be one of auto, cuda, emulated, simulated"),
    script("backend=cpu", says="backend=cpu: must be one of auto, cuda, emulated, simulated"),
    script("gpu=h100-80g", says="gpu=h100-80g: Did you mean 'h100-80gb'? It must be one of h100-80gb,"),
    script("gpu=", says="gpu= … must be one of h100-80gb,"),
    script("steps=0", says="steps=0: must be a whole number of at least 1"),
    script("steps=-1", says="steps=-1: must be a whole number of at least 1"),
    script("steps=1.5", says="steps=1.5: must be a whole number of at least 1"),
    script("steps=many", says="steps=many: must be a whole number of at least 1"),
    script("steps=9999999", says="steps=9999999: must be a whole number of at most 1000000"),
    script("steps=[1", says="steps=[1: cannot be read as a value"),
    script(f"steps={BOMB}", says="steps= … cannot be read as a value"),
    script("num_processes=0", says="num_processes=0: must be a whole number of at least 1"),
    script("weights=pretrained", says="weights=pretrained: must be one of random, checkpoint"),
    script("snapshot=yes please", says="snapshot=yes please: must be true or false"),
    script("breakdown=1", says="breakdown=1: must be true or false"),
    script("strict=", says="strict= … must be true or false"),
    script("timeout_s=0", says="timeout_s=0: must be more than 0 seconds"),
    script("timeout_s=-1", says="timeout_s=-1: must be a number of at least 0"),
    script("timeout_s=.inf", says="timeout_s=.inf: must be a number of at least 0"),
    script("sample_period_s=soon", says="sample_period_s=soon: must be a number of at least 0"),
    script("results_dir=", says="results_dir= … must be a folder"),
    script("python=nosuch", "backend=simulated", says="python=nosuch: must be a file that can be"),
    script("python=file", "backend=simulated", files={"file": ""}, says="must be a file that can be run"),
    script("python=/bin/true", "backend=simulated", says="python=/bin/true: does not say what it"),
    script("python=/bin/false", "backend=simulated", says="python=/bin/false: does not run"),
    script("backend=cuda", says="backend=cuda: needs a GPU, but"),
    script("backend=cuda", "num_processes=2", says="backend= … num_processes=2: backend=cuda", sentences=2),
    bad("torchrun", says="script=none: name a Python file after torchrun to run"),
    bad("torchrun", "--nproc_per_node=8", says="name a Python file after torchrun --nproc_per_node=8 to run"),
    bad("torchrun", "--nproc_per_node=8", "nosuch.py", says="script=nosuch.py: no such file"),
    script("torchrun", "--nproc_per_node=x", says="torchrun nprocpernode=x: must be a number"),
    script("accelerate", says="script=accelerate: no such file"),
    script("accelerate", "launch", "-m", "a", says="launcher= … runs a module, and only files are run"),
    script("accelerate", "launch", "--num_processes", says="accelerate numprocesses=nothing: must be"),
    script(
        "accelerate", "launch", "--config_file", "no.yaml",
        says="config_file=no.yaml: cannot be read",
    ),
    script(
        "accelerate", "launch", "--config_file=a.yaml", files={"a.yaml": "[1"},
        says="config_file=a.yaml: is not a configuration of accelerate",
    ),
    script("deepspeed", "--num_gpus", "0", says="deepspeed numgpus=0: must be a number"),
    script("mpirun", says="script=mpirun: no such file"),
    script("ranks=2", says="ranks=2: needs gpus= and a command"),
    bad("gpus=2xh100-80gb", "ranks=0", "true", says="ranks=0: must be"),
    bad("gpus=2xh100-80gb", "ranks=some", "true", says="ranks=some: must be"),
    script(
        "backend=simulated",
        files={"results/scripts/train/records/0.json": NEWER},
        says="record= … was written by a newer version of this program",
    ),
)  # fmt: skip
