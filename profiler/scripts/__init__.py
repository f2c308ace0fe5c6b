"""Running a training script unmodified, and recognising its phases from outside.

torch's global hooks and calls of libraries become phases and steps.

Not seen:
    - The first card of the process only, and of several ranks rank 0 only. Other processes that the script starts are
      not counted.
    - What exit handlers allocate.
    - Passes inside of a function that `torch.compile` compiles as a whole: their memory belongs to the phase before. A
      compiled *module* is seen.
    - Generation by vLLM counts as the phase before it, but in a command of `gpus=`.
    - In a command of `gpus=` with `breakdown=true`, the category of everything. Parameters, `.grad` and optimizer
      states are known by their addresses at the end of a phase; what FSDP gathers and reduces, and vLLM's weights and
      KV cache, by the function that asks for them, and all that an engine within the trainer asks for is "vLLM";
      gradients that autograd makes whole, logits and cuBLAS's workspaces by their size, which an activation may have
      by chance. Tiles of logits and cuBLASLt's 1 MiB are activations, as is what nothing names, but workspace in the
      optimizer's step, communication in `sync`, and other in `load`, in which weights that FSDP does not share have no
      name yet. A phase has no categories where a process did not see its end, or slept.
    - torch warns of hooks under `torch.compile`; the memory is the same.
    - `forward` of a script that calls no module; a checkpoint that a script writes by itself.
    - Memory that an optimizer pages to the host.
    - The line of what a backward pass makes: torch runs it on a thread without a Python stack. Parameters, gradients
      and optimizer states have their names all the same.
    - Time. A `rollout` is decoded token by token, for long completions that takes minutes: `timeout_s=` ends it.
    - With `backend=emulated` also what an emulated card cannot know (below). A model that a script builds on the CPU
      takes memory of the host.

Runs without an answer:
    - `os._exit` in its first thread: nothing is said, because it ends as by `sys.exit`.
    - `os._exit` in another thread: it is said that this thread ended the process.
    - `os.exec*`: refused (`unsupported`), with the command that `profiler.run` should get instead.
    - it leaves the work to processes that it starts, and puts nothing on the card itself: `unsupported`, with their
      commands or functions.
    - emulated, it calls an entry point of the driver that has no answer: `unsupported`, with the entry point's name.
    - it is killed, or crashes: the signal is named.
    - faults in its arguments: what argparse says is shown.

What begins a phase of a script:
    - `load`: the first line.
    - `rollout`: `generate` of transformers; in a command of `gpus=` also a step of vLLM.
    - `score`: a pass without gradient: a reference, or old log-probabilities, also those of verl in such a command.
    - `reward`: the reward functions of trl's GRPOTrainer.
    - `forward`: a pass with gradient of a module that is in no other.
    - `backward`: `backward` of torch.
    - `optimizer`: clipping of gradients, or the step of an optimizer.
    - `evaluation`: `evaluate` and `predict` of transformers; a pass without gradient of a trained module in `eval()`.
    - `checkpoint`: `torch.save`, `save_pretrained`, a checkpoint of transformers.
    - `sync`: `update_weights` of verl, and waking up and taking weights in the engine.
"""
