"""Shell scripts, read without running them: words, commands, values, and what of them depends on the machine."""
