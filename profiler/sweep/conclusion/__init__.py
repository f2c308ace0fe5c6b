"""What a sweep ends with: tables, a dry run, or a comparison of environments."""
