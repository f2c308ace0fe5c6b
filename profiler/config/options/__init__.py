"""The options of commands: what a declaration says, and how words and values of a command line are read."""
