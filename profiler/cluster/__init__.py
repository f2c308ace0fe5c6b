"""Run trials on slots of other machines, which an engine starts and places (docs/many_machines.md).

The loop here claims trials, runs them on slots and writes what comes back; on the other machine `profiler.execution`
runs one trial at a time. With `engine=slurm` slots find their work themselves. One file imports Ray, one asks Slurm.
"""
