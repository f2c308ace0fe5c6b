"""The pages of the reference: each is made from declarations, and no sentence of it is written by hand twice."""
