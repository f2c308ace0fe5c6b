"""torch 2.13.0: `FSDPMemTracker` of `torch.distributed._tools`, on fake tensors and with fake collectives."""

from maintenance.benchmark.adapters.question import Question, Said
from maintenance.benchmark.adapters.watched_steps import model_of, peak_of_step, prepare, refuse

_OPTIMIZERS = {"adamw_torch": "AdamW", "adamw_torch_fused": "AdamW", "sgd": "SGD"}


def answer(question: Question) -> Said:
    """Return the peak of the first process, with FSDP 2 as accelerate applies it: to each layer, then to the rest."""
    import torch
    from torch import distributed
    from torch._subclasses import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    job = question.job
    question.needs("distributed_type", "fsdp")
    question.needs("fsdp_version", 2)
    question.needs("fsdp_offload_params", False)
    question.needs("cp_size", 1)
    question.needs("gradient_accumulation_steps", 1)  # accelerate keeps earlier gradients whole.
    question.needs("bf16", True)
    refuse(question)
    distributed.init_process_group("fake", rank=0, world_size=job["num_processes"], store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (job["num_processes"],))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        with FakeTensorMode():
            # accelerate keeps what is trained in float32, whatever its type was.
            model = model_of(question, torch.float32)
            for part in (*model.model.layers, model):
                fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=job["fsdp_reshard_after_forward"])
            # Not fused, nor foreach: of those it counts whole tensors where they are sharded.
            optimizer = getattr(torch.optim, _OPTIMIZERS[job["optim"]])(model.parameters(), foreach=False)
            prepare(question, optimizer)
            return peak_of_step(question, model, optimizer, FSDPMemTracker(model, optimizer))
    finally:
        distributed.destroy_process_group()
