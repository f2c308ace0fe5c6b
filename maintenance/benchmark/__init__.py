"""One set of jobs with their peaks, for all who predict memory, and how far each predictor is from them."""
