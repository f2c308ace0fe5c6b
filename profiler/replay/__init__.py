"""The command that replays a memory history recorded on a real card, as it was and as it would have been."""
