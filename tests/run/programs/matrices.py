"""One linear layer on the card."""

import argparse
import os
import sys

import torch

arguments = argparse.ArgumentParser()
arguments.add_argument("--width", type=int, required=True)
arguments.add_argument("--fail", action="store_true")
arguments.add_argument("--ddp", action="store_true")
chosen = arguments.parse_args()
print("torch's compiler is imported:", "torch._inductor.compile_fx" in sys.modules)

if chosen.ddp:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
model = torch.nn.Linear(chosen.width, chosen.width, bias=False, device="cuda")
trained = torch.nn.parallel.DistributedDataParallel(model) if chosen.ddp else model
optimizer = torch.optim.AdamW(trained.parameters())
for _ in range(5):
    trained(torch.ones(1, chosen.width, device="cuda")).sum().backward()
    if chosen.fail:
        raise RuntimeError("on purpose")
    optimizer.step()
