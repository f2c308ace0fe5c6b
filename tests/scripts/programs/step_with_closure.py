"""Training in the closure of the optimizer's step, as Lightning does."""

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(1, 4)).sum()
    loss.backward()
    return loss


for _ in range(3):
    optimizer.step(closure)
