"""One file per predictor that has a package: `answer` calls it. Runs in the package's own environment.

A file imports the standard library, and its package within `answer`.
"""
