"""torch 2.13.0: `MemTracker` of `torch.distributed._tools`, as in the example of its documentation."""

from maintenance.benchmark.adapters.question import Question, Said
from maintenance.benchmark.adapters.watched_steps import model_of, peak_of_step, prepare, refuse

_OPTIMIZERS = {"adamw_torch": ("AdamW", "foreach"), "adamw_torch_fused": ("AdamW", "fused"), "sgd": ("SGD", "foreach")}


def answer(question: Question) -> Said:
    """Return the peak of the tracker."""
    import torch
    from torch._subclasses import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    question.needs("num_processes", 1)
    refuse(question)
    kind, way = _OPTIMIZERS[question.job["optim"]]
    with FakeTensorMode():
        model = model_of(question, getattr(torch, question.job["dtype"]))
        optimizer = getattr(torch.optim, kind)(model.parameters(), **{way: True})
        prepare(question, optimizer)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        return peak_of_step(question, model, optimizer, tracker)
