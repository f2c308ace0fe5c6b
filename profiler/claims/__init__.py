"""`python -m profiler.claims`: the claims of public texts, judged by stored trials and by the closed form."""
