"""The instants of a trial, in the order of a step, and the reserved memory that follows from them."""
