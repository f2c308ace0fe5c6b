"""The campaign on a real card: facts of the card, recorded histories, two comparisons, in addition to sweeps."""
