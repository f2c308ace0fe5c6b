"""A small job of FSDP 2 that runs on the CPU with gloo and on emulated cards: the bytes it keeps, and its peaks.

`python fsdp_job.py cpu RANK STORE` is one of two processes on the CPU, `python fsdp_job.py cuda` rank 0 on a card.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

LAYERS, HIDDEN, VOCABULARY, ROWS, PROCESSES = 4, 512, 4096, 64, 2


class Layer(nn.Module):
    """A residual MLP."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, states):
        """Return the sum of the input and the MLP's output."""
        return states + self.down(torch.relu(self.up(states)))


class Model(nn.Module):
    """An embedding, layers and a head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids):
        """Return the logits of each id."""
        states = self.embedding(ids)
        for layer in self.layers:
            states = layer(states)
        return self.head(states)


class Counters:
    """Bytes in use and their peak: of torch's profiler on the CPU, of torch's counters on a card."""

    def __init__(self, device):
        self.device = device
        self.found = {}

    def measured(self, name, part):
        """Run `part`, and keep by how much it grew and its peak above the beginning."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            result = part()
            after, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
            self.found[name] = (after - before, peak - before)
            return result
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            result = part()
            # gloo's threads hold the buffers of a collective a little longer than it takes.
            time.sleep(0.2)
        events = [each for each in profile.profiler.kineto_results.events() if each.name() == "[memory]"]
        now = peak = 0
        for each in sorted(events, key=lambda event: event.start_ns()):
            now += each.nbytes()
            peak = max(peak, now)
        self.found[name] = (now, peak)
        return result


def run(device):
    """Return the bytes that each part of two steps leaves and its peak, by the name of the part."""
    torch.manual_seed(0)
    mesh = dist.init_device_mesh(device, (PROCESSES,))
    counters = Counters(device)
    with torch.device(device):
        model = Model()
        ids = torch.randint(VOCABULARY, (ROWS,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)

    def shard():
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)

    shard()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False, fused=False)
    for step in (1, 2):
        loss = counters.measured(f"forward {step}", lambda: model(ids).float().sum())
        counters.measured(f"backward {step}", loss.backward)
        del loss
        counters.measured(f"step {step}", optimizer.step)
        counters.measured(f"zero_grad {step}", optimizer.zero_grad)
    return counters.found


if __name__ == "__main__":
    if sys.argv[1] == "cpu":
        store = dist.FileStore(sys.argv[3], PROCESSES)
        dist.init_process_group("gloo", store=store, rank=int(sys.argv[2]), world_size=PROCESSES)
    else:
        torch.cuda.set_device(0)
        dist.init_process_group("nccl")
    print(json.dumps(run(sys.argv[1])))
    sys.stdout.flush()
    dist.destroy_process_group()
