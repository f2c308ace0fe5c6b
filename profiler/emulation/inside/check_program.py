"""`python -m profiler.emulation.inside.check_program`: a small CUDA program that prints what it found, as JSON."""

import json

from profiler.emulation.card import marks_of_this_process


def main() -> None:
    """Train a small network for a step, and read values that the host needs."""
    import torch

    device = torch.device("cuda")
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 1000)).to(
        device
    )
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.arange(512, device=device).remainder(7)
    loss = torch.nn.functional.cross_entropy(model(tokens), tokens)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    marks = marks_of_this_process()
    found = {
        "card": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "cards": torch.cuda.device_count(),
        "memory_bytes": torch.cuda.mem_get_info()[1],
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "zeros_counted": int((tokens == 0).sum()),
        "values": marks.values if marks else "not emulated",
    }
    print(json.dumps(found))  # noqa: T201  # read by the command


if __name__ == "__main__":
    main()
