"""Faults that are planted into a copy of the program, to see which test notices each of them."""
