"""A loop without a trainer: gradient accumulation, clipping, evaluation, a checkpoint and `finally`."""

import argparse
import atexit
from pathlib import Path

import torch

arguments = argparse.ArgumentParser()
arguments.add_argument("--steps", type=int, default=5)
arguments.add_argument("--checkpoint")
arguments.add_argument("--note")
chosen = arguments.parse_args()

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
frozen = torch.nn.Linear(8, 4).requires_grad_(False).eval()
optimizer = torch.optim.AdamW(model.parameters())


def note(text):
    if chosen.note:
        with Path(chosen.note).open("a") as file:
            file.write(f"{text}\n")


atexit.register(note, "exit handler")


@torch.no_grad()
def evaluate():
    model.eval()
    model(torch.ones(2, 8))
    model.train()


try:
    evaluate()
    for _ in range(chosen.steps):
        for _ in range(2):
            batch = torch.ones(2, 8)
            with torch.no_grad():
                reference = frozen(batch)
            loss = torch.nn.functional.mse_loss(model(batch), reference)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        note("step")
        if chosen.checkpoint:
            torch.save(model.state_dict(), chosen.checkpoint)
finally:
    note("finally")
