"""A loss that runs a reference model between the policy and backward, as that of DPO does."""

import torch

policy, reference = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
for _ in range(2):
    found = policy(torch.ones(1, 4))
    with torch.no_grad():
        other = reference(torch.ones(1, 4))
    (found - other).sum().backward()
    optimizer.step()
