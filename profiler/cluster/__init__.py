"""Run trials on slots of other machines, which an engine starts and places (docs/many_machines.md).

The loop of `profiler.execution` claims trials and settles them; here they are sent to slots, and what comes back is
written. On the other machine the same loop runs one trial at a time. With `engine=slurm` slots find their work
themselves. One file imports Ray, one asks Slurm.
"""
