"""`python -m profiler.claims`: the claims of public texts, judged by stored trials and by the closed form.

The data is in `profiler/published/`: `claims.yaml` with configurations and tolerances, from which
`sweeps/grid/claims.yaml` is generated, `looked_up.csv` with what was looked up, and `counted.csv` with the counted
work of steps.
"""
