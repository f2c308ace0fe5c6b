"""Records of runs of every kind: their form in JSON, their versions, and the folder that holds them."""
