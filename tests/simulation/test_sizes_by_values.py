"""Operations whose results have a size that depends on values: those of ids and sizes of images are known."""

import torch

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.simulation.session import Simulation


def test_results_are_as_large_as_their_values_say():
    simulation = Simulation(KNOWN_GPUS["h100-80gb"])
    with simulation.running():
        grid = torch.tensor([[1, 4, 6], [2, 2, 2]]).to("meta")
        repeated = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
        assert repeated.tolist() == [24, 4, 4]
        assert torch.unique_consecutive(repeated).tolist() == [24, 4]
        _, counts = torch.unique_consecutive(repeated, return_counts=True)
        assert counts.tolist() == [1, 2]
        ids = torch.tensor([[3, 1], [1, 3], [3, 1]]).to("meta")
        assert torch.unique(ids, dim=0).tolist() == [[1, 3], [3, 1]]
        # A list of numbers of the card, as transformers makes one of position deltas.
        assert torch.tensor([grid.max() + 1, grid.min()], device="meta").tolist() == [7, 1]
