"""What is shown of runs that have no trial: scripts and monitored runs."""
