"""A local Ray cluster with one GPU: an actor trains there, and a task computes after it has been killed."""

import json

import ray
import torch

ray.init(include_dashboard=False)


@ray.remote(num_gpus=1, num_cpus=1)
class Trainer:
    """Trains a layer for a step."""

    def step(self) -> int:
        """Return the peak of torch's counter."""
        layer = torch.nn.Linear(1024, 1024, device="cuda")
        layer(torch.ones(4, 1024, device="cuda")).sum().backward()
        torch.optim.AdamW(layer.parameters()).step()
        return torch.cuda.max_memory_allocated()


@ray.remote(num_gpus=1, num_cpus=1)
def score() -> int:
    """Multiply matrices, and return the peak of torch's counter."""
    matrix = torch.ones(512, 512, device="cuda")
    return (matrix @ matrix).shape[0] and torch.cuda.max_memory_allocated()


gpus = ray.cluster_resources()["GPU"]
trainer = Trainer.remote()
trained = ray.get(trainer.step.remote())
ray.kill(trainer)
print("FOUND", json.dumps([gpus, trained, ray.get(score.remote())]), flush=True)
