"""Running the real trainer on a GPU that is not there.

torch's `meta` device takes the place of the GPU: tensors have shapes and no values. A dispatch mode sees every
operation, forward and backward, and follows storages, not tensors, from allocation to release. The result is a trace
of allocations with phase and category, as pure data: `profiler.allocator` replays it for a card. It does not know
trl's trainer; that comes from `profiler.training`.

Cards that choose the same kernels share one run: the trace keeps the sizes that blocks have by compute capability,
and is replayed on the memory of each card less its CUDA context, which is assumed. A trial needs the most memory in
segments that hold a tensor, not what a card without limit would reserve, because a full card returns its cache.
"""
