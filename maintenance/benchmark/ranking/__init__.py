"""How far each predictor is from the rows: scores, the page and its figure."""
