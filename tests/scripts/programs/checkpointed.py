"""Activation checkpointing runs modules again during backward."""

import torch
from torch.utils.checkpoint import checkpoint


class Model(torch.nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        self.use_reentrant = use_reentrant

    def forward(self, batch):
        return self.second(checkpoint(self.first, batch, use_reentrant=self.use_reentrant))


for use_reentrant in (False, True):
    model = Model(use_reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 4, requires_grad=True)).sum().backward()
    optimizer.step()
