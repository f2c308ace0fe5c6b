"""The command that checks the closed form on sampled trials: simulated, estimated, and compared with baselines."""
