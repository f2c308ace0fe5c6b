"""trl's own keys and files: what each means for a trial."""
