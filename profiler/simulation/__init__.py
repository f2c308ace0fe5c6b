"""Running the real trainer on a GPU that is not there.

torch's `meta` device takes the place of the GPU: tensors have shapes and no values. A dispatch mode sees every
operation, forward and backward, and follows storages, not tensors, from allocation to release. The result is a trace
of allocations with phase and category, as pure data: `profiler.allocator` replays it for a card. It does not know
trl's trainer; that comes from `profiler.training`.

Cards that choose the same kernels share one run: the trace keeps the sizes that blocks have by compute capability,
and is replayed on the memory of each card less its CUDA context, which is assumed. A trial needs the most memory in
segments that hold a tensor, not what a card without limit would reserve, because a full card returns its cache.

Not known to a script on a simulated card:
    - A value that the script reads from the card and that was not made on the host, such as a loss: floats are 1,
      integers 0.
    - Completions have their maximum of tokens: the token that is sampled never ends one.
    - Gradients are finite: no step of a `GradScaler` is skipped.
    - `torch.compile` is left out, and all streams are one.
    - Weights that bitsandbytes quantises to 4 bits are loaded one by one, as on a card.
    - CUDA graphs, process groups and weights in 8 bits are refused: `backend=emulated` runs them.
    - Every public name of `torch.cuda` and `torch.accelerator` is answered, does nothing, or is refused by name.
      `memory_stats()` has all its keys, and memory snapshots are those of the model of the allocator. Sensors are 0.
      Pools, allocators and shares of the card that a script makes by itself are refused.
"""
