"""Estimates: of one trial, of a grid, and for every card."""
