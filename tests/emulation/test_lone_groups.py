"""Groups of gloo whose other ranks are not there."""

from types import SimpleNamespace

import torch

from profiler.emulation.inside.prepare import join_groups_alone


def test_a_group_of_gloo_has_the_ranks_that_are_not_there_and_hears_its_own_words():
    c10d = SimpleNamespace(ProcessGroupGloo=object)
    join_groups_alone(c10d)
    group = c10d.ProcessGroupGloo(None, 0, 4, timeout=3)
    assert (group.rank(), group.size()) == (0, 4)
    assert isinstance(group, c10d.ProcessGroupGloo)
    assert not isinstance(object(), c10d.ProcessGroupGloo)
    group._set_sequence_number_for_group()  # torch calls it for each group of gloo
    heard = [torch.zeros(2) for _ in range(4)]
    group.allgather([heard], [torch.ones(2)]).wait()
    assert all(torch.equal(each, torch.ones(2)) for each in heard)
