"""Where the records of a sweep are: a folder, or a store that several machines share, with claims on trials."""
