"""The command that replays a memory history recorded on a real card, also under other conditions."""
