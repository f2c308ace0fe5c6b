"""Reserved memory of one trial: the requests of its formulas, replayed through the model of the allocator."""
