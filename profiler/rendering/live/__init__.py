"""What a terminal shows before and while something runs."""
