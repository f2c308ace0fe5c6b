"""Ranks exchange values, each its own; run by torchrun, every rank prints what it has found.

`--ends=RANK` lets that rank end in the middle without a word, `--differs` lets it make another call than the others.
"""

import argparse
import json
import os
import signal
import sys

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--ends", type=int, default=-1)
parser.add_argument("--differs", type=int, default=-1)
asked = parser.parse_args()

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
rank, ranks = dist.get_rank(), dist.get_world_size()
found: dict[str, object] = {}


def on_card(*values, dtype=None):
    """Return a tensor of values that this rank sends."""
    return torch.tensor(values, device="cuda", dtype=dtype)


for name in ("SUM", "MAX", "AVG", "PRODUCT"):
    tensor = on_card(1.5 + rank, 2.0)
    dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name))
    found[name] = tensor.tolist()

gathered = [on_card(0, 0) for _ in range(ranks)]
dist.all_gather(gathered, on_card(rank, rank * rank))
found["all_gather"] = [each.tolist() for each in gathered]

# Ragged: the sizes decide how much each rank allocates.
length = on_card(3 + rank)
lengths = [torch.zeros_like(length) for _ in range(ranks)]
dist.all_gather(lengths, length)
longest = int(torch.stack(lengths).max())
padded = torch.nn.functional.pad(torch.full((3 + rank,), rank, device="cuda"), (0, longest - 3 - rank), value=-1)
rows = [torch.empty_like(padded) for _ in range(ranks)]
dist.all_gather(rows, padded)
found["ragged"] = [row.tolist() for row in rows]

tensor = on_card(10 * (rank + 1), dtype=torch.bfloat16)
dist.broadcast(tensor, src=ranks - 1)
found["broadcast"] = tensor.item()

words = [f"of rank {rank}"] * 2
dist.broadcast_object_list(words, src=1)
found["objects"] = words
everything: list[object] = [None] * ranks
dist.all_gather_object(everything, {"rank": rank, "text": "x" * (rank + 1)})
found["gathered objects"] = everything

if rank == asked.ends:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == asked.differs:
    dist.broadcast(on_card(1, 2), src=0)
dist.barrier()

scattered = on_card(0)
dist.reduce_scatter_tensor(scattered, torch.arange(ranks, device="cuda") + 100 * rank)
found["reduce_scatter"] = scattered.tolist()
received = on_card(-1)
requests = dist.batch_isend_irecv(
    [
        dist.P2POp(dist.isend, on_card(rank), (rank + 1) % ranks),
        dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
    ]
)
for request in requests:
    request.wait()
found["ring"] = received.item()
if rank == 0:
    dist.send(on_card(7), dst=1)
elif rank == 1:
    dist.recv(received, src=0)
    found["received"] = received.item()

pair = dist.new_group([0, 1])  # a split of the whole group
if rank < 2:
    tensor = on_card(rank + 1)
    dist.all_reduce(tensor, group=pair)
    found["pair"] = tensor.item()

large = torch.ones(1 << 20, device="cuda")
dist.all_reduce(large)
sys.stdout.write(f"RANK {rank} {json.dumps(found)}\n")  # at once: ranks share the output, which is not buffered
dist.destroy_process_group()
