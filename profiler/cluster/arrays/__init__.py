"""Arrays of slots that find their work themselves: Slurm."""
