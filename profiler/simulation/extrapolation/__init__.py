"""Decoding steps and training steps that are extrapolated instead of run.

In the first two rollouts of a trial a few decoding steps run, and the allocations and releases of the steps between
them are extrapolated from their pattern. Where a kernel takes other blocks from some length on, it announces that
length, and steps run again there. Later rollouts fill their cache at once, as `rollout=synthetic` does on real
hardware. Training steps that repeat end the run. Tests compare both with runs that take every step.
"""
