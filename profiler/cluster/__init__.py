"""Run trials on slots of other machines, which an engine starts and places (docs/many_machines.md).

The loop of `profiler.execution` claims trials and settles them; here they are sent to slots, and what comes back is
written. On the other machine the same loop runs one trial at a time. With `engine=slurm` slots find their work
themselves. One file imports Ray, one asks Slurm.

Ray:
    - **Versions.** Before the first trial every node answers with its versions. Nodes that differ, or that lack a
      package, are refused with exit code 2. A node that joins later with other versions is not used.
    - **What is lost.** If an actor or a node ends, its trial runs again on another; after three times it is recorded
      as `killed`. Lost nodes are done without, and new ones are used when Ray has them. After 10 minutes without any
      slot the sweep ends. If the driver ends, however that may be, Ray ends its actors (with `ray://` after half a
      minute), and the same command continues: what is stored does not run again. The same holds if the head ends, once
      Ray runs again.
    - **Files.** Models and data that trials name by a path must have the same path and content on every node.
    - **Another Python.** With `python=PATH` each node looks at that path, and with `backend=emulated` for the
      environment that `python -m profiler.emulation install` made there. This machine needs neither. A node where it
      is missing, lacks packages or has other versions than on the first node is refused with exit code 2.

Slurm:
    - **Versions.** A slot whose versions are not those of the command refuses the sweep before its first trial, and
      ends all slots.
    - **Before anything starts**, `sbatch --test-only` is asked. What it refuses, and a Slurm that does not answer
      within 9 s, end with exit code 2 and Slurm's own words.
    - **Another Python.** A slot runs the command line of the sweep, so that `python=PATH` is a path on its node, and
      `backend=emulated` uses the environment of the home folder there. The node where the command runs needs it too:
      its versions are those that slots must have.

Shared stores:
    - Failed trials. A trial that fails runs once. A sweep goes on from the first machine that starts it until a
      machine has come to the end of the plan, is stopped by Ctrl-C, or ends with an error; machines that start in
      between, also those that were taken away and come back, do not run again what has failed in it. The next command
      does, once. With `resume=false` the same holds for every trial. A trial runs once more if its machine ends in the
      instant between its record and the mark in `ended/`, or if its GPU broke. Machines belong to the same sweep if
      they have the same trials; each `shard=k/n` is a sweep of its own.
    - Network. While the network is cut, running trials continue. A machine that cannot reach the store for longer than
      `lease_s` may lose a trial to another one; its own result of it is then left out, and it says so. An operation
      that fails for 5 minutes ends the sweep; what is not yet published stays in the cache folder of that machine
      (`~/.cache/grpo-vram-profiler/shared/`), and is published when the same command starts there again.
"""
