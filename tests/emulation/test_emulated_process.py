"""Programs on torch's CUDA build. They run where an environment with one is at hand, and are skipped elsewhere."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UsageError
from profiler.emulation.launch import EmulatedPython, check, emulated_python, process_environment

T4 = KNOWN_GPUS["t4-16gb"]
MIB = 2**20
START = "import json, torch\nfrom profiler.emulation.card import marks_of_this_process\n"


@pytest.fixture(scope="module")
def python() -> EmulatedPython:
    """The environment that EMULATION_PYTHON names, or the installed one."""
    if shutil.which("g++") is None:
        pytest.skip("g++ not found")
    try:
        return emulated_python()
    except UsageError as error:
        pytest.skip(f"no environment with a CUDA build of torch: {error}")


def run(python: EmulatedPython, program: str, **options) -> object:
    """Run a program and return what it printed last, as JSON."""
    environment = process_environment(python, options.pop("gpu", T4), base=os.environ, **options)
    command = [str(python.executable), "-c", START + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_small_program_of_the_command_runs(python):
    found = check(python, T4)
    assert (found.card, found.values) == (T4.title, "complete")
    assert found.memory_bytes == T4.memory_bytes
    assert 0 < found.allocated_bytes <= found.reserved_bytes


def test_values_that_steer_the_host_are_right(python):
    found = run(
        python,
        """
x = torch.tensor([[1, 2, 0], [0, 5, 6]], device="cuda")
lengths = torch.tensor([[3], [5]], device="cuda")
mask = torch.arange(6, device="cuda")[None] < lengths
big = torch.arange(2_000_000, device="cuda")
part = torch.zeros(4, 6, dtype=torch.long, device="cuda"); part[:, 2:4] = 7
print(json.dumps({
    "nonzero": x.nonzero().tolist(), "all": (x > 0).all().item(), "sums": mask.long().sum(-1).tolist(),
    "mean": round(mask.float().mean().item(), 4), "unique": torch.unique(x).tolist(), "picked": x[x > 1].tolist(),
    "big": [int((big % 3 == 0).sum()), int(big[big > 1_999_990].sum())], "part": part.sum().item(),
    "drawn": bool((torch.randint(0, 10, (50,), device="cuda") < 10).all()),
    "counts": torch.bincount(x.flatten()).tolist(),
    "product": (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).tolist(),
    "values": marks_of_this_process().values,
}))""",
    )
    assert found == {
        "nonzero": [[0, 0], [0, 1], [1, 1], [1, 2]],
        "all": False,
        "sums": [3, 5],
        "mean": 0.6667,
        "unique": [0, 1, 2, 5, 6],
        "picked": [2, 5, 6],
        "big": [666_667, 17_999_955],
        "part": 56,
        "drawn": True,
        "counts": [2, 1, 1, 0, 0, 1, 1],
        "product": [[2.0, 2.0], [2.0, 2.0]],
        "values": "complete",
    }


def test_what_follows_from_a_networks_output_is_named_if_the_host_reads_it(python):
    found = run(
        python,
        """
logits = torch.nn.Linear(256, 512, device="cuda")(torch.ones(64, 256, device="cuda"))
token = torch.multinomial(logits.softmax(-1), 1); sampled = int(token.max()) < 512
finite = torch.isfinite(logits).all().item(), torch.isnan(logits.sum()).item()
_, experts = torch.topk(logits[:, :8].contiguous(), 2, dim=-1)
loads = torch.bincount(experts.flatten(), minlength=8).tolist()
before = marks_of_this_process()
count = int((logits > 0).sum())
after = marks_of_this_process()
print(json.dumps([sampled, finite, loads, before.values, before.assumptions, count, after.values_read]))
""",
    )
    sampled, finite, loads, before, assumptions, count, after = found
    assert (sampled, finite, loads, before, count) == (True, [True, False], [16] * 8, "complete", 0)
    assert [text.split(" ", 1)[0] for text in assumptions if "draws" in text or "chooses" in text][-1] == "aten::topk"
    assert "floats that are not computed are finite" in assumptions
    assert after == ["Long of aten::gt"]


def test_a_kernel_of_triton_that_was_not_looked_at_is_named(python, tmp_path):
    module = tmp_path / "kernels_of_test.py"
    module.write_text("""
import triton, triton.language as tl
@triton.jit
def count_kernel(out, n):
    tl.store(out, n)
""")
    found = run(
        python,
        f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import kernels_of_test
out = torch.zeros(1, dtype=torch.long, device="cuda"); kernels_of_test.count_kernel[(1,)](out, 5)
print(json.dumps([out.item(), marks_of_this_process().values_read]))
""",
        gpu=KNOWN_GPUS["h100-80gb"],
    )
    assert found == [0, ["Long of Triton kernel count_kernel"]]


def test_memory_ends_as_on_the_card_with_torchs_own_error(python):
    found = run(
        python,
        """
kept = []
try:
    while True: kept.append(torch.empty(2**28, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as error:
    text = str(error)
print(json.dumps([len(kept), torch.cuda.memory_allocated(), text.split(". ")[0]]))
""",
    )
    blocks, allocated, text = found
    free = T4.memory_bytes - cuda_context_bytes(T4.compute_capability)
    assert blocks == free // (256 * MIB)
    assert allocated == blocks * 256 * MIB
    assert text == "CUDA out of memory"


def test_a_recorded_history_leaves_errors_that_unwind_alone(python):
    """Non-reentrant checkpointing ends a recomputation by an error, while the tensors of the last line are freed."""
    found = run(
        python,
        """
from profiler.measurement.counters.torch_cuda import TorchCuda
from torch.utils.checkpoint import checkpoint
torch.cuda.init()
TorchCuda().record_history(most_entries=1000)

def chunk(x):
    valid, log = x[:, 0] > 0, x.log_softmax(-1)
    return log.sum(), ((log.exp() * log).sum(-1) * valid).sum()

x = torch.ones(8, 512, device="cuda", requires_grad=True)
checkpoint(chunk, x, use_reentrant=False)[0].backward()
entries = TorchCuda().snapshot()["device_traces"][0]
print(json.dumps(sum(bool(entry["frames"]) for entry in entries if entry["action"] == "alloc")))""",
    )
    assert isinstance(found, int)
    assert found > 10


def test_expandable_segments_map_what_they_need(python):
    found = run(
        python,
        """
import os
torch.cuda.memory._set_allocator_settings("expandable_segments:True")
kept = [torch.empty(30 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(3)]
first = torch.cuda.memory_reserved(); del kept; torch.cuda.empty_cache()
print(json.dumps([first, torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]]))
""",
    )
    assert found[:2] == [100 * MIB, 0]  # in pieces of 20 MiB
    assert found[2] == T4.memory_bytes - cuda_context_bytes(T4.compute_capability)


@pytest.mark.parametrize(("family", "config"), [("Qwen3Moe", {"num_experts": 8}), ("GptOss", {"num_local_experts": 8})])
def test_a_mixture_runs_with_balanced_experts(python, family, config):
    config |= {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "num_experts_per_tok": 2}
    found = run(
        python,
        f"""
import transformers
config = transformers.{family}Config(vocab_size=500, **{config!r})
with torch.device("cuda"): model = transformers.{family}ForCausalLM(config)
counted = []
def keep(layer, inputs, output):
    if isinstance(output, tuple) and output[-1].dtype == torch.long: counted.append(output[-1])
for layer in model.modules():
    if type(layer).__name__.endswith("TopKRouter"): layer.register_forward_hook(keep)
tokens = torch.arange(400, device="cuda").view(4, 100)
model(input_ids=tokens, labels=tokens).loss.backward()
marks = marks_of_this_process()
print(json.dumps([torch.bincount(counted[0].flatten()).tolist(), marks.values, marks.assumptions]))
""",
        gpu=KNOWN_GPUS["h100-80gb"],
    )
    assert found[:2] == [[100] * 8, "complete"]
    assert "aten::topk chooses 2 of 8 equally often" in found[2]


def test_rank_0_of_8_runs_by_itself(python):
    found = run(
        python,
        """
import torch.distributed as dist
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
count = torch.full((1,), 5, device="cuda"); dist.all_reduce(count)
gathered = [None] * 8; dist.all_gather_object(gathered, {"length": 3})
dist.barrier(); dist.destroy_process_group()
print(json.dumps([torch.cuda.device_count(), count.item(), gathered]))
""",
        num_processes=8,
    )
    assert found == [8, 40, [{"length": 3}] * 8]


def test_the_real_environment_of_the_caller_does_not_matter(python, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert run(python, "print(json.dumps(torch.cuda.device_count()))", cards=2) == 2


def test_a_second_build_is_not_needed(python):
    again = emulated_python(python.executable)
    assert again == python
    assert Path(again.libraries, "libemulatedvalues.so").exists()


def test_completions_have_the_length_that_was_set(python):
    """A planted end of text: all tokens but six are special, and draws of any kind take one of these."""
    found = run(
        python,
        """
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
shape = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
ends = list(range(2, 60))
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, eos_token_id=ends, pad_token_id=0, **shape)).cuda()
prompt = torch.tensor([[60, 61], [62, 63]], device="cuda")
ways = {"sampled": dict(do_sample=True), "greedy": dict(do_sample=False), "beams": dict(num_beams=3, do_sample=False)}
found = {}
for name, way in ways.items():
    made = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, **way)[:, 2:]
    found[name] = [list(made.shape), sorted(set(made.flatten().tolist()) & {0, *ends})]
found["beams"][1] = []  # whose tokens are those of a beam that was never filled: scores are unknown
other = GenerationConfig(eos_token_id=[60, 61, 62], max_new_tokens=20, do_sample=True, pad_token_id=0)
made = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=other)[:, 2:]
found["other ends"] = [list(made.shape), sorted(set(made.flatten().tolist()) & {60, 61, 62})]
scores = torch.nn.functional.linear(torch.rand(8, 4096, device="cuda"), torch.rand(16, 4096, device="cuda"))
found["experts"] = [sorted(scores.topk(2).indices.flatten().tolist()), None]
print(json.dumps(found))""",
    )
    assert found.pop("experts") == [list(range(16)), None]
    assert found == {way: [[2, 20], []] for way in ("sampled", "greedy", "beams", "other ends")}
