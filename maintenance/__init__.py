"""Tools of maintainers: samples, comparisons, benchmarks and generated pages. Not installed."""
