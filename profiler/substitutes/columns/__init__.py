"""The columns that a script reads from the rows of a data set, and the shapes that they have, from its source."""
