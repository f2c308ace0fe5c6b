"""Figures: functions from the values of the analysis to matplotlib figures. `files` encodes them."""
