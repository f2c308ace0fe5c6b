"""Bad input of `python -m profiler.sweep`."""

from cases import BOMB, DEEP_PATH, LONG, Case, Special, bad

GRID = "+grid=logprobs"
PACKAGE = "# @package _global_\n"


def grid(content: str | bytes | Special, *, says: str = "", sentences: int = 1, other: str | None = None) -> Case:
    """A grid of the user, named mine, and a second one named other."""
    files = {"grid/mine.yaml": content} | ({} if other is None else {"grid/other.yaml": other})
    return bad("-cd", ".", "+grid=mine", files=files, says=says, sentences=sentences)


WORDS = (
    bad(says="grid= … a sweep needs a grid; the grids are claims, completion_length,"),
    bad(GRID, "activation_offloading=cpu", says="activation_offloading= … must be true or false"),
    bad(GRID, "critic=2", says="critic= … must be true or false"),
    bad(GRID, "critic=true", "tuning=lora", says="tuning= … is not combined with critic=true, which is trained as a"),
    bad(GRID, "critic=true", "recipe=rloo", says="critic= … has no meaning with recipe=rloo"),
    bad(GRID, "use_dynamic_bsz=yes", says="use_dynamic_bsz= … must be true or false"),
    bad(
        GRID,
        "use_dynamic_bsz=true",
        "ppo_max_token_len_per_gpu=9",
        # A case of the grid has another fault.
        sentences=2,
        says="ppo_max_token_len_per_gpu= … is less than one row, because prompt and completion of this trial have",
    ),
    bad(GRID, "ppo_max_token_len_per_gpu=0", says="ppo_max_token_len_per_gpu= … must be a whole number of at least 1"),
    bad(
        GRID, "use_dynamic_bsz=true", "logprobs=minibatch", says="logprobs= … is not combined with use_dynamic_bsz=true"
    ),
    bad("", GRID, says="argument= … is not of the form key=value"),
    bad("=", GRID, says="= … is unknown."),
    bad("=x", GRID, says="= … is unknown."),
    bad("+", GRID, says="argument= … is not of the form key=value"),
    bad("~", GRID, says="argument= … would remove a key, but every key is needed"),
    bad("@", GRID, says="argument= … is not of the form key=value"),
    bad("a@b=c", GRID, says="argument= … has a package"),
    bad("grid@x=full", GRID, says="argument= … has a package"),
    bad("~seed", GRID, says="argument= … would remove a key, but every key is needed"),
    bad("x y", GRID, says="argument= … is not of the form key=value"),
    bad("--nonsense", GRID, says="flag= … is not known; the flags are --help, --hydra-help, --version,"),
    bad("--cfg", GRID, says="--cfg= … must be followed by one of job, hydra, all"),
    bad("--cfg", "nonsense", GRID, says="--cfg= … must be followed by one of job, hydra, all"),
    bad("--info", "nonsense", GRID, says="--info= … must be followed by one of all, config, defaults, defaults-tree,"),
    bad("--help=x", says="--help= … takes no value"),
    bad("-p", GRID, says="-p= … must be followed by one of PACKAGE"),
    bad("-sc", says="-sc= … must be followed by one of install=bash, install=fish, install=zsh,"),
    bad("-sc", "install=fish2", says="-sc= … must be followed by one of install=bash, install=fish, install=zsh,"),
    bad("-cd", says="--config-dir= … must be a folder that exists"),
    bad("-cd", "~nosuchuser", GRID, says="--config-dir= … must be a folder that exists"),
    bad("-cd", LONG, GRID, says="--config-dir= … cannot be read"),
    bad("-cd", "/dev/zero", GRID, says="--config-dir= … must be a folder that exists"),
    bad("-cd", "loop", GRID, files={"loop": Special.LOOP}, says="--config-dir= … cannot be read"),
    bad("+grid=", says="grid= … is not a grid; the grids are claims, completion_length,"),
    bad("+grid=null", says="grid= … is not a grid; the grids are claims, completion_length,"),
    bad("+grid=../config", says="grid= … is not a grid; the grids are claims, completion_length,"),
    bad("+grid=/etc/passwd", says="grid= … is not a grid; the grids are claims, completion_length,"),
    bad("+grid=" + LONG, says="grid= … is not a grid; the grids are claims, completion_length,"),
    bad("+grid={a:b}", says="grid= … is not a grid; the grids are claims, completion_length,"),
    bad("+grid=full,logprobs", says="grid= … names several grids, but a sweep runs one"),
    bad(GRID, "hydra/launcher=x", says="hydra/launcher= … Hydra refuses it: In 'hydra/config': Could not find"),
    bad(
        GRID,
        "hydra.searchpath=[file:///nowhere]",
        says="grid= … cannot be composed: provider=hydra.searchpath in command-line,",
    ),
    bad(
        GRID,
        "hydra.searchpath=x",
        says="grid= … cannot be composed: hydra.searchpath must be a list of strings. Got: x",
    ),
    bad(
        GRID,
        "hydra.nonsense=1",
        says="hydra.nonsense= … Hydra refuses it: Could not override 'hydra.nonsense'. To append to",
    ),
)

VALUES = (
    bad(GRID, "seed=range(0,1000000000)", says="seed= … has more values than the 100,000 points of one grid"),
    bad(GRID, "seed=range(1000000000,0,-1)", says="seed= … has more values than the 100,000 points of one grid"),
    bad(GRID, "seed=shuffle(range(0,1000000000))", says="seed= … has more values than the 100,000 points of one grid"),
    bad(GRID, "seed=sort(range(0,1000000000))", says="seed= … has more values than the 100,000 points of one grid"),
    bad(GRID, "seed=range(0,1000,0.0000001)", says="seed= … has more values than the 100,000 points of one grid"),
    bad(GRID, "seed=range(0,inf)", says="seed= … has more values than the 100,000 points of one grid"),
    bad(
        GRID,
        "seed=range(0,nan)",
        says="seed= … cannot be read as a value, because Hydra cannot evaluate its call of a function",
    ),
    bad(
        GRID,
        "seed=range(0,5,0)",
        says="seed= … cannot be read as a value, because Hydra cannot evaluate its call of a function",
    ),
    bad(GRID, "seed=range(5,5)", says="seed= … has no values, so that there would be no trial"),
    bad(GRID, "seed=range(9,5)", says="seed= … has no values, so that there would be no trial"),
    bad(
        GRID,
        "seed=range(0,300)",
        "steps=range(1,300)",
        "max_prompt_length=range(1,300)",
        says="points= … 4 logprobs x 300 seed x 299 steps x 299 max_prompt_length are more",
    ),
    bad(
        GRID,
        "seed=choice()",
        says="seed= … cannot be read as a value, because Hydra cannot evaluate its call of a function",
    ),
    bad(
        GRID,
        "seed=glob(*)",
        says="seed= … cannot be read as a value, because Hydra cannot evaluate its call of a function",
    ),
    bad(
        GRID,
        "seed=interval(1,4)",
        says="seed= … cannot be read as a value, because Hydra cannot evaluate its call of a function",
    ),
    bad(
        GRID,
        "seed=int(a)",
        says="seed= … cannot be read as a value, because Hydra cannot evaluate its call of a function",
    ),
    bad(
        GRID,
        "seed=tag(a,1,2)",
        says="seed= … cannot be read as a value, because Hydra cannot evaluate its call of a function",
    ),
    bad(
        GRID, "seed=sort(" + "1," * 20_000 + "1)", says="seed= … has 40,007 characters, and at most 20,000 are allowed"
    ),
    bad(GRID, "seed=" + "[" * 300, says="seed= … nested more than 64 deep"),
    bad(GRID, "seed=" + "[" * 300 + "]" * 300, says="seed= … nested more than 64 deep"),
    bad(GRID, "seed=" + "9" * 5000, says="seed= … more than 1000 digits"),
    bad(GRID, "seed=4,", says="seed= … cannot be read as a value, because it has an empty part"),
    bad(GRID, "seed=1.5", says="seed= … must be a whole number of at least 0"),
    bad(GRID, "seed={a:1}", says="seed= … must be a whole number of at least 0"),
    bad(GRID, "seed=${sede}", says="seed= … refers to no key of the trial"),
    bad(GRID, "seed=${seed}", says="seed= … refers to itself"),
    bad(GRID, "model=" + "a" * 50_000, says="model= … File name too long"),
    bad(GRID, "model=[a", says="model= … cannot be read as a value, because it has a list that is not closed"),
    bad(GRID, 'model="', says='model= … cannot be read as a value, because it has a quote (") that is not closed'),
    bad(GRID, 'model="a\nb"', says="model= … must be a built-in"),
    bad(GRID, "model=\x00", says="model= … embedded null byte"),
    bad(
        GRID,
        "model=\udce4",
        says="model= … must be a built-in name",
    ),
    bad(GRID, "model=\x1b[31m", says="model= … cannot be read as a value, because it has '[' within a text"),
    bad(GRID, "model=" + LONG, says="model= … cannot be read"),
    bad(GRID, "model='~nosuchuser'", says="model= … cannot be read"),
    bad(GRID, "dataset=" + LONG, says="dataset= … cannot be read"),
    bad(GRID, "dataset=/dev/zero", says="dataset= … must be a local file or folder, or a hub id such as openai/gsm8k"),
    bad(
        GRID,
        "dataset=/nowhere/rows.jsonl",
        says="dataset= … must be a local file or folder, or a hub id such as openai/gsm8k",
    ),
    bad(
        GRID,
        "dataset=./fifo",
        files={"fifo": Special.FIFO},
        says="dataset= … must be a local file or folder, or a hub id such as openai/gsm8k",
    ),
    bad(GRID, "dataset=loop", files={"loop": Special.LOOP}, says="dataset= … cannot be read"),
    bad(
        GRID,
        "num_generations=1,3,0",
        sentences=3,
        says="num_generations= … must be a whole number of at least … must divide the completions",
    ),
    bad(GRID, "axes.model=[tiny]", says="axes.model= … belongs to a grid file"),
    bad(
        GRID, "use_vllm=true", "vllm_gpu_memory_utilization=0", says="vllm_gpu_memory_utilization=0: must be more than"
    ),
    bad(GRID, "use_vllm=true", "vllm_gpu_memory_utilization=1.1", says="=1.1: must be more than 0 and at most 1"),
    bad(GRID, "use_vllm=true", "vllm_mode=there", says="vllm_mode=there: must be one of colocate, server"),
    bad(
        GRID,
        "recipe=dpo",
        "logprobs=pairs_at_once",
        says="logprobs=pairs_at_once: a sweep runs trl's trainers, and this loss is that of another program",
    ),
    bad(GRID, "use_vllm=true", "vllm_mode=server", says="vllm_mode=server: a sweep does not run vLLM on other GPUs"),
    bad(
        GRID,
        "use_vllm=true",
        "vllm_mode=server",
        "vllm_enable_sleep_mode=true",
        says="vllm_enable_sleep_mode=true: needs vllm_mode=colocate",
    ),
    bad(
        GRID,
        "use_vllm=true",
        "vllm_tensor_parallel_size=2",
        says="vllm_tensor_parallel_size=2: must divide num_processes=1, because as many GPUs share each engine of vLLM",
    ),
    bad(GRID, "use_vllm=true", "vllm_tensor_parallel_size=0", says="must be a whole number of at least 1"),
    bad(
        GRID,
        "use_vllm=true",
        "vllm_max_model_length=99999999",
        says="vllm_max_model_length=99999999: is more than the context of",
    ),
    bad(
        GRID,
        "use_vllm=true",
        "vllm_max_model_length=1041",
        says="vllm_max_model_length=1041: would cut completions … 1042 tokens. Use at least",
    ),
    bad(GRID, "use_vllm=true", "vllm_model_impl=mine", says="vllm_model_impl=mine: must be one of vllm, transformers"),
    bad(
        GRID,
        "num_processes=2",
        "backend=simulated",
        says="num_processes=2: a sweep runs several GPUs with backend=cuda",
    ),
    bad(
        "+grid=completion_length",
        "model=tiny",
        "tuning=full",
        "num_processes=2",
        "distributed_type=fsdp",
        "backend=cpu",
        says="distributed_type=fsdp: shards on GPUs only",
    ),
    bad(
        "+grid=completion_length",
        "model=tiny",
        "tuning=qlora",
        "num_processes=2",
        "distributed_type=deepspeed",
        "zero_stage=3",
        "backend=emulated",
        "dry_run=true",
        says="tuning=qlora: a sweep does not make weights in 4 bits with zero_stage=3",
    ),
    bad("+grid=sft", "use_vllm=true", says="use_vllm=true: has no meaning with recipe=sft"),
    bad(GRID, "use_vllm=true", "backend=cpu", says="use_vllm=true: needs backend=cuda, emulated or simulated"),
    bad(GRID, "bnb_4bit_use_double_quant=nf4", says="bnb_4bit_use_double_quant= … must be true or false"),
    bad(GRID, "use_vllm=true", "tuning=qlora", says="tuning=qlora: a sweep does not run vLLM with weights in 4 bits"),
)

OPTIONS = (
    bad(GRID, "results_dir=", says="results_dir= … must be a folder"),
    bad(GRID, "results_dir=null", says="results_dir= … must be a folder"),
    bad(GRID, "results_dir=null", says="results_dir= … must be a folder"),
    bad(GRID, "results_dir=", says="results_dir= … must be a folder"),
    bad(
        GRID,
        "results_dir='~nosuchuser/x'",
        says="results_dir= … cannot be used, because there is no home folder for ~nosuchuser",
    ),
    bad(GRID, "results_dir=" + LONG, says="results_dir= … results cannot be written there"),
    bad(GRID, "results_dir=" + DEEP_PATH, says="results_dir= … results cannot be written there"),
    bad(GRID, "results_dir=/proc/nowhere", says="results_dir= … results cannot be written there"),
    bad(GRID, "results_dir=/dev/null/x", says="results_dir= … results cannot be written there"),
    bad(GRID, "results_dir=file", files={"file": ""}, says="results_dir= … results cannot be written there"),
    bad(GRID, "results_dir=loop", files={"loop": Special.LOOP}, says="results_dir= … results cannot be written there"),
    bad(
        GRID,
        "results_dir=${results_dir}",
        says="grid= … cannot be composed: Recursive interpolation detected full_key:",
    ),
    bad(
        GRID,
        "results_dir=${oc.env:NOWHERE}",
        says="grid= … cannot be composed: KeyError raised while resolving interpolation:",
    ),
    bad(
        GRID,
        "results_dir=${nowhere:1}",
        says="grid= … cannot be composed: Unsupported interpolation type nowhere full_key:",
    ),
    bad(GRID, "results_dir=r", files={"r/logprobs/runs.parquet": Special.FIFO}, says="runs= … it cannot be read"),
    bad(GRID, "results_dir=r", files={"r/logprobs/runs.parquet": Special.ZERO}, says="runs= … it cannot be read"),
    bad(
        GRID,
        "results_dir=r",
        files={"r/logprobs/runs.parquet": b"PAR1"},
        says="runs= … this is not a parquet file, or it is damaged",
    ),
    bad(GRID, "results_dir=r", files={"r/logprobs/runs.parquet": Special.FOLDER}, says="runs= … it cannot be read"),
    bad(GRID, "results_dir=r", files={"r/logprobs/records/0123456789abcdef.json": Special.ZERO}, code=0, sentences=0),
    bad(GRID, "timeout_s=1e9", says="timeout_s= … must be a number of at most 1e+06"),
    bad(GRID, "timeout_s=1e400", says="timeout_s= … must be a number of at most 1e+06"),
    bad(GRID, "timeout_s=0", says="timeout_s= … must be more than 0 seconds"),
    bad(GRID, "timeout_s=-1", says="timeout_s= … must be a number of at least 0"),
    bad(GRID, "timeout_s=inf", says="timeout_s= … must be a number of at most 1e+06"),
    bad(GRID, "timeout_s=nan", says="timeout_s= … must be a number of at least 0"),
    bad(GRID, "timeout_s=soon", says="timeout_s= … must be a number of at least 0"),
    bad(GRID, "stall_s=0", says="stall_s= … must be more than 0 seconds"),
    bad(GRID, "warm_up_s=1e9", says="warm_up_s= … must be a number of at most 1e+06"),
    bad(GRID, "python=/no/python", says="python= … does not run (No such file or directory)"),
    bad(GRID, "backend=cpu", "python=/no/python", says="python= … is for backend=simulated and backend=emulated"),
    bad(GRID, "python=/no/a,/no/a", says="python= … names /no/a twice", sentences=2),
    bad(GRID, "python=/no/a,/no/b", says="python=/no/b … does not run", sentences=2),
    bad(GRID, "max_increase=2%", says="max_increase= … compares environments, and none are named"),
    bad(GRID, "python=a,b", "max_increase=-1", says="max_increase= … must be an increase of at least 0", sentences=3),
    bad(GRID, "python=[a]", says="python= … must be the path of a program"),
    bad(GRID, "backend=emulated", "python=/no/python", says="python= … does not run (No such file or directory)"),
    bad(GRID, "backend=emulated,simulated", says="backend= … emulated cannot run with another backend"),
    bad(GRID, "backend=emulated", "strict=maybe", says="strict= … must be true or false"),
    bad(GRID, "jobs=0", says="jobs= … must be a whole number of at least 1"),
    bad(GRID, "jobs=1.5", says="jobs= … must be a whole number of at least 1"),
    bad(GRID, "jobs=${jobs}", says="grid= … cannot be composed: Recursive interpolation detected full_key: jobs"),
    bad(GRID, "jobs=99999999999", says="jobs= … must be a whole number of at most 2147483647"),
    bad(GRID, "sample_period_s=0", says="sample_period_s= … must be more than 0 seconds"),
    bad(GRID, "price_per_hour=-1", says="price_per_hour= … must be a number of at least 0"),
    bad(GRID, "prices=/no/file.csv", says="prices=/no/file.csv: cannot be read (No such file or directory)"),
    bad(GRID, "prices=/dev/zero", says="prices=/dev/zero: cannot be read ("),
    bad(GRID, "prices=''", says="prices= … must be the path of a CSV file"),
    bad(GRID, "prices=a.csv", "price_per_hour=1", says="prices= … says what the GPUs cost, and so does price_per_hour"),
    bad(GRID, "lease_s=0", says="lease_s= … must be more than 0 seconds"),
    bad(GRID, "results_dir=ftp://a/b", says="results_dir= … must be a folder, s3://bucket/path, gs://bucket/path or"),
    bad(GRID, "results_dir=s3://../b", says="results_dir= … must be a folder, s3://bucket/path, gs://bucket/path or"),
    bad(GRID, "results_dir=file:///proc/a", says="results_dir= … results cannot be written there ("),
    bad(GRID, "shard=0/2", says="shard= … must be k/n with 1 <= k <= n <= 1,000,000"),
    bad(GRID, "shard=3/2", says="shard= … must be k/n with 1 <= k <= n <= 1,000,000"),
    bad(GRID, "shard=2", says="shard= … must be k/n with 1 <= k <= n <= 1,000,000"),
    bad(GRID, "shard=1/2,2/2", says="shard= … takes one value, because only keys of a trial can have several"),
    bad(GRID, "engine=dask", says="engine= … must be one of local, ray, slurm"),
    bad(GRID, "engine=local,ray", says="engine= … takes one value, because only keys of a trial can have several"),
    bad(GRID, "engine=ray", says="engine= … needs ray, which is not installed. Install the extra 'ray'"),
    bad(GRID, "slurm_partition='a b'", says="slurm_partition= … must be a name that Slurm knows"),
    bad(GRID, "slurm_account=[a,b]", says="slurm_account= … must be a name that Slurm knows"),
    bad(
        GRID, "slurm_time=1h", says="slurm_time= … must be minutes, hours:minutes:seconds or days-hours:minutes:seconds"
    ),
    bad(
        GRID, "slurm_time=0", says="slurm_time= … must be minutes, hours:minutes:seconds or days-hours:minutes:seconds"
    ),
    bad(
        GRID, "slurm_gpus_per_node=h100", says="slurm_gpus_per_node= … must be a number of at least 1, or a kind and a"
    ),
    bad(GRID, "resume=perhaps", says="resume= … must be true or false"),
    bad(GRID, "dry_run=true,false", says="dry_run= … takes one value, because only keys of a trial can have several"),
    bad(GRID, "timeout=1", says="timeout= … is unknown."),
)

FILES = (
    grid(PACKAGE + BOMB, says="grid= … cannot be composed: its file has more than 100,000 values"),
    grid(PACKAGE + "x: &a [*a]", says="grid= … cannot be composed: its file contains itself, by its alias *a"),
    grid(
        PACKAGE + "axes: &a {model: *a}", says="grid= … cannot be composed: its file contains itself, by its alias *a"
    ),
    grid(
        PACKAGE + "axes: &a {model: [*a]}", says="grid= … cannot be composed: its file contains itself, by its alias *a"
    ),
    grid(PACKAGE + "[" * 5000, says="grid= … cannot be composed: its file has values that are nested more than 64"),
    grid(PACKAGE + "- a", says="grid= … cannot be composed: In 'grid/mine': ConfigTypeError raised while"),
    grid(PACKAGE + "text", says="text= … is unknown."),
    grid(PACKAGE + "a: [", says="grid= … cannot be composed: its file is not valid"),
    grid(PACKAGE + "# " + "x" * 2_000_000, says="grid= … cannot be composed: [Errno 27] it has more than 1 MiB"),
    grid(
        PACKAGE + "axes: {seed: [" + ",".join(map(str, range(100_001))) + "]}",
        says="grid= … cannot be composed: its file has more than 100,000 values",
    ),
    grid(PACKAGE + "axes: {seed: [0x_]}", says="grid= … cannot be composed: its file is not valid"),
    grid(PACKAGE + "axes: {seed: [!!timestamp x]}", says="grid= … cannot be composed: its file is not valid"),
    grid(PACKAGE + "axes: {seed: [2020-01-01]}", says="seed= … must be a whole number of at least 0"),
    grid(PACKAGE + "seed: 1" + ":1" * 20_000, says="grid= … cannot be composed: its file is not valid"),
    grid(PACKAGE + "seed: 0x" + "f" * 5000, says="grid= … cannot be composed: its file is not valid"),
    grid(PACKAGE + "axes: !!python/object:os.system {}", says="grid= … cannot be composed: its file is not valid"),
    grid(
        PACKAGE + "seed: 1\nseed: 2",
        says="grid= … cannot be composed: its file has the key 'seed' twice, in lines 2 and 3",
    ),
    grid(
        PACKAGE + "seed: 1\n---\nseed: 2",
        says="grid= … cannot be composed: its file has several YAML documents, and one is",
    ),
    grid(b"\xff\xfe", says="grid= … cannot be composed: a file of it is not text in"),
    grid(b"\xff", says="grid= … cannot be composed: a file of it is not text in"),
    grid(b"a: \x07", says="grid= … cannot be composed: its file is not valid"),
    grid(Special.FIFO, says="grid= … is not a grid; the grids are claims, completion_length,"),
    grid(Special.ZERO, says="grid= … is not a grid; the grids are claims, completion_length,"),
    grid(Special.FOLDER, says="grid= … is not a grid; the grids are claims, completion_length,"),
    grid(Special.LOOP, says="grid= … is not a grid; the grids are claims, completion_length,"),
    grid("", says="grid= … Begin its file with the line '# @package _global_'."),
    grid("axes: {seed: [1, 2]}", says="grid= … Begin its file with the line '# @package _global_'."),
    grid(PACKAGE + "axes: {model: []}", says="axes.model= … must be a list of at least one value"),
    grid(PACKAGE + "axes: [1]", says="axes= … must be a mapping of keys to lists of values"),
    grid(PACKAGE + "axes: 1", says="axes= … must be a mapping of keys to lists of values"),
    grid(PACKAGE + "axes: ${axes}", says="axes= … must be a mapping of keys to lists of values"),
    grid(PACKAGE + "axes: {1: [2]}", says="1= … is unknown."),
    grid(PACKAGE + "axes: {model: tiny}", says="axes.model= … must be a list of at least one value"),
    grid(PACKAGE + "axes: {model: [{a: b}]}", says="model= … must be a built-in name, a local path or a hub id"),
    grid(PACKAGE + "axes: {model: [[a]]}", says="model= … must be a built-in name, a local path or a hub id"),
    grid(
        PACKAGE + "axes: {modle: [tiny]}",
        says="modle= … is unknown.",
    ),
    grid(PACKAGE + "axes: {model: ['${model}']}", says="model= … refers to itself"),
    grid(
        PACKAGE + "axes: {seed: [1]}\ncases: [{seed: 2}]",
        says="axes.seed= … is an axis and in a case; it can only be one",
    ),
    grid(PACKAGE + "cases: [1]", says="cases= … must be a list of mappings of keys to values"),
    grid(PACKAGE + "cases: {seed: 1}", says="cases= … must be a list of mappings of keys to values"),
    grid(PACKAGE + "question: [1]", says="question= … must be a text"),
    grid(PACKAGE + "question: {a: 1}", says="question= … must be a text"),
    grid(PACKAGE + "model: ${nowhere}", says="model= … refers to no key of the trial"),
    grid(PACKAGE + "seed: ${steps}\nsteps: ${seed}", sentences=1, says="steps= … refers to itself"),
    grid(
        PACKAGE + "jobs: ${oc.env:NOWHERE}",
        says="grid= … cannot be composed: KeyError raised while resolving interpolation:",
    ),
    grid(PACKAGE + "results_dir: {a: b}", says="results_dir= … must be a folder"),
    grid(PACKAGE + "hydra: x", says="grid= … cannot be composed: In 'grid/mine': ValidationError raised while"),
    grid(
        PACKAGE + "hydra: {searchpath: 3}",
        says="grid= … cannot be composed: In 'grid/mine': Overriding hydra.searchpath is",
    ),
    grid("# @package a.b\nx: 1", says="a= … is unknown."),
    grid("# @package\nx: 1", says="grid= … cannot be composed: Expected header format: KEY VALUE, got '@package'"),
    grid(
        "# @package _global_ x\nmodel: tiny",
        says="grid= … cannot be composed: Too many components in '@package _global_ x'",
    ),
    grid(
        PACKAGE + "defaults: [mine]", says="grid= … cannot be composed: its list of defaults includes itself, directly"
    ),
    grid(
        PACKAGE + "defaults: [/grid/mine]",
        says="grid= … cannot be composed: its list of defaults includes itself, directly",
    ),
    grid(
        PACKAGE + "defaults: [/grid: mine]",
        says="grid= … cannot be composed: its list of defaults includes itself, directly",
    ),
    grid(
        PACKAGE + "defaults: [other]",
        other=PACKAGE + "defaults: [mine]",
        says="grid= … cannot be composed: its list of defaults includes itself, directly",
    ),
    grid(
        PACKAGE + "defaults: [other]",
        other=BOMB,
        says="grid= … cannot be composed: its file has more than 100,000 values",
    ),
    grid(
        PACKAGE + "defaults: {a: b}", says="grid= … cannot be composed: Invalid defaults list in 'grid/mine', defaults"
    ),
    grid(PACKAGE + "defaults: x", says="grid= … cannot be composed: Invalid defaults list in 'grid/mine', defaults"),
    grid(PACKAGE + "defaults: [1]", says="grid= … cannot be composed: Unsupported type in defaults : int"),
    grid(
        PACKAGE + "defaults: [{a: [b]}]", says="grid= … cannot be composed: In 'grid/mine': Could not load 'grid/a/b'."
    ),
    grid(
        PACKAGE + "defaults: [_self_, _self_]", says="grid= … cannot be composed: Duplicate _self_ defined in grid/mine"
    ),
    grid(
        PACKAGE + "defaults: [nothing]",
        says="grid= … cannot be composed: In 'grid/mine': Could not load 'grid/nothing'.",
    ),
)

CASES = WORDS + VALUES + OPTIONS + FILES
