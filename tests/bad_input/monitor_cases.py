"""Bad input of `python -m profiler.monitor`."""

from cases import BOMB, DEEP_PATH, LONG, Case, Files, Special, bad

from profiler.storage.files.typed_json import with_checksum

NEWER = with_checksum({"monitored_schema_version": 99, "record": {}})
NO_PROGRAM = "no such program on the PATH"


def with_command(*words: str, says: str, sentences: int = 1, files: Files | None = None) -> Case:
    """Words in front of a command that exists and leaves a file if it runs."""
    return bad(*words, "touch", "it has run", says=says, sentences=sentences, files=files)


CASES = (
    bad(says="gpu=none: … A GPU with NVIDIA's driver is needed"),
    bad("watch=1s", says="gpu=none"),
    bad("watch=0", says="watch=0: must be from 10ms to 3600s, such as 1s or 500ms."),
    bad("watch=-1s", says="watch=-1s: must be from 10ms to 3600s"),
    bad("watch=", says="watch=''"),
    bad("watch=soon", says="watch=soon: must be from 10ms"),
    bad("watch=1h", says="watch=1h: must be from 10ms"),
    bad("watch=true", says="watch=true: must be from 10ms"),
    bad("watch=.inf", says="watch=.inf: must be from 10ms"),
    bad("watch=99999999s", says="watch=99999999s: must be from 10ms"),
    bad("watch=[1", says="watch=[1: cannot be read as a value"),
    bad(f"watch={BOMB}", says="watch= … cannot be read as a value"),
    bad("format=yaml", says="format=yaml: must be one of table, json"),
    bad("wtach=1s", says="wtach=1s: … Did you mean 'watch'?"),
    bad("=1", says="=1: is unknown"),
    bad("PYTHONPATH=x", "python", says="PYTHONPATH=x: … An environment variable is set before python"),
    bad("watch=0", "format=x", "a=b", says="a=b: … watch=0: … format=x:", sentences=3),
    bad("config=grpo.yaml", says="config=grpo.yaml: has a meaning only in front of a command to watch"),
    bad("results_dir=x", says="results_dir=x: has a meaning only in front of a command to watch"),
    with_command("watch=1s", says="watch=1s: has no meaning with a command, which is sampled until it ends"),
    with_command("format=json", says="format=json: has no meaning with a command"),
    bad("", says="command='': name a program to run"),
    bad("--", says="command=none: name a program to run"),
    bad("-x", says="command=-x: begins with an option"),
    bad("nosuchprogram", "--lr", "1", says=f"command=nosuchprogram --lr 1: {NO_PROGRAM}"),
    bad("train.py", files={"train.py": ""}, says="Did you mean 'python train.py'?"),
    bad("./train.sh", files={"train.sh": ""}, says="command=./train.sh: is not a program that can be run"),
    bad("./nosuch", says="command=./nosuch: no such file"),
    bad("./folder", files={"folder/x": ""}, says="command=./folder: is a folder, and a program is needed"),
    bad("./pipe", files={"pipe": Special.FIFO}, says="command=./pipe: is"),
    bad("./loop", files={"loop": Special.LOOP}, says="command=./loop: cannot be read"),
    bad("a\x00b", says="command= … has a character that no command can have"),
    bad("touch", "a\x00b", says="command= … has a character that no command can have"),
    bad(LONG, says=f"command= … {NO_PROGRAM}"),
    bad(DEEP_PATH, says="command= … cannot be read"),
    bad("\x1b[31m", says=NO_PROGRAM),
    with_command("sample_period_s=0", says="sample_period_s=0: must be from 10ms"),
    with_command("sample_period_s=x", says="sample_period_s=x: must be from 10ms"),
    with_command("results_dir=", says="results_dir= … must be a folder"),
    with_command("results_dir=~nosuchuser", says="results_dir=~nosuchuser: cannot be used"),
    with_command("results_dir=f", files={"f": ""}, says="results_dir=f: results cannot be written there"),
    with_command("results_dir=/proc/x", says="results_dir=/proc/x: results cannot be written there"),
    with_command(
        files={"results/monitor/touch/records/0.json": NEWER},
        says="record= … was written by a newer version of this program",
    ),
    with_command("config=nosuch.yaml", says="config=nosuch.yaml: cannot be read"),
    with_command("config=f", files={"f": Special.FIFO}, says="config=f: cannot be read"),
    with_command("config=f.yaml", files={"f.yaml": "[1"}, says="config=f.yaml"),
    with_command("model=huge", says="model=huge"),
    with_command("model=tiny,qwen2.5-0.5b", says="describes several trials or cards"),
    with_command("model=tiny", "gpu=any", says="describes several trials or cards"),
    with_command("model=huge", "results_dir=f", files={"f": ""}, says="results_dir=f: … model=huge:", sentences=2),
)  # fmt: skip
