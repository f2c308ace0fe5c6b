"""verl's keys, defaults and configurations."""
