"""The claims of public texts with their verdicts."""
