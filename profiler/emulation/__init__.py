"""PyTorch's own CUDA build on an emulated driver: a card that has memory and computes nothing (docs/emulation.md).

`driver/` has the C and C++ of the driver. `startup/` and `inside/` run in the emulated process, and only `inside/`
imports torch. Its figures are emulated, never measured; recordings of it are test data of the allocator's model and
of the simulation.

Values that the host reads:
    - integers, booleans, small floats that follow from the program's data: computed.
    - tokens that are sampled (`multinomial`, `argmax` of a network's output): any token but special ones (ends of
      text, padding, images), with equal probability: completions have their maximum of tokens; stated as an assumption.
    - what `topk` chooses of a network's output: experts of a mixture, or the most likely tokens: each equally often,
      row by row; stated as an assumption: `aten::topk chooses 8 of 128 equally often`.
    - other floats that follow from a network's output: 0; comparisons with infinity and NaN answer as for a finite
      number; stated as an assumption.
    - integers and booleans that follow from such floats: what follows from 0; if the host reads one, the record names
      it.
    - results of Triton kernels of trl 1.16 and liger_kernel 0.8 (`triton_kernels.py` has the lists): floats only, none
      steers the host.
    - counts that liger_kernel's fused experts allocate by : computed on the CPU.
    - counts of tokens that vLLM 0.31 schedules by : computed on the CPU; sampled
      tokens are any token but special ones.
    - results of other Triton kernels, also those of `torch.compile`: unknown; if the host reads an integer of one, the
      record names the kernel.
    - `profiler.emulation.card` reads what a process noted: `values` is `complete`, or the list of what was read
      and was not right. A float that the host reads is not listed: it is logged, and no trainer that was looked at
      allocates by it.

Not known:
    - **cuDNN's workspace** is 0. On cards of capability 9.0 and 10.0 attention goes through cuDNN where torch prefers
      it.
    - **The CUDA context** is the assumption of `profiler/domain/cards/card.py`. Kernels that load at their first
      use are not in it.
    - **Which beam is the best**: a beam search has its lengths, and may return beams that were never filled.
    - **Large messages of NCCL.** Ranks that are processes (`gpus=`) send each other integers up to 32 MiB and floats up
      to 64 KiB per call; a larger message has no content, and its receiver does not wait for it. Where rank 0 runs
      alone the others are taken to hold what it holds.
    - **What another process wrote** to memory of a card that both have opened (CUDA IPC, shared pieces of virtual
      memory): a read is named. Its bytes are those of the process that allocated it, and return when that one frees
      them or ends; a card keeps them until the last one has closed them.
    - **NCCL's buffers** and those of other libraries on the card, which torch's counters do not see either.
    - **Workers that `ranks=` leaves out** are taken to hold what the first ones hold. Their rows are zeros, and the one
      engine generates the rows of all.
    - **Saving, testing and validation of verl**, in a command that does not set `trainer.total_training_steps`: two
      steps run, without them. Its agents, reward workers, storage units and data loaders are one process each, the
      dashboard of Ray is off, and loggers without their package are left out, even those that the command
      names. Other keys that the command sets are kept.
    - **The choice of algorithms** by cuBLAS and cuDNN; workspaces that torch itself allocates for them are real.
    - **What the host has no memory for.** DeepSpeed's stage 3 copies a GPU's weights through the host: `qwen2.5-32b`
      on 2 GPUs needs 33 GB there, and is the one trial of `+grid=fsdp` that is not kept.
    - **Occupancy**: a kernel is taken to fit twice on a multiprocessor.
    - **Time**, and how kernels of several streams overlap.

Refused:
    - Before the program starts, with exit code 2: no environment with a CUDA build; torch not for Linux on x86-64;
      Triton missing (libraries take other paths without it); a minor version of torch that was never tried, unless
      `strict=false`; a real NVIDIA driver present, unless GRPO_VRAM_EMULATE_ANYWAY=1 is set.
    - While it runs: an entry point of the driver without an answer ends the process by name; with `strict=false` it
      goes on, and the record is marked.

What is used of a vendor:
    - Nothing of a vendor is shipped, decompiled or translated, and no header of a vendor is used.
    - What is written here are names and numbers of interfaces, from torch's published binaries, its source and public
      documentation: which functions there are, the order of their arguments, the numbers of attributes and errors, and
      the layout of structures that torch reads.
    - The libraries exist on the user's machine only, and are made there. torch is installed from the index as it is
      published; `install` then takes the machine code of its kernels out of its own copy on the disk, which nothing
      reads here.
"""
