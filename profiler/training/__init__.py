"""From a trial's specification to a trainer of trl that announces its phases, and one run of it.

Only this package and `simulation` import trl, peft, transformers and bitsandbytes. Where the trial runs comes in as a
session (`placement.py`), which trainer it runs as a recipe (`recipes/`), and how completions are generated as a rollout
engine (`rollouts/`).
"""
