"""One optimizer per parameter, which steps as soon as the gradient is there."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
for _ in range(3):
    model(torch.ones(1, 4)).sum().backward()
