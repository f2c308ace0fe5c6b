"""How long trials and sweeps take."""
