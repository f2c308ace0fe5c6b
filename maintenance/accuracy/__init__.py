"""The command that holds the closed form to account: drawn trials, simulated, estimated, and compared with rivals."""
