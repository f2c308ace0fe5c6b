"""How wrong predictions are, against what was measured."""
