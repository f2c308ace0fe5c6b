"""Run trials on slots of other machines, which an engine starts and places."""
