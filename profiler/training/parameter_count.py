"""Count the parameters of a model without memory for them: `python -m profiler.training.parameter_count`.

Its `config.json` is read from standard input, and the model is made on torch's meta device from that alone. Nothing is
downloaded, and no code of others runs.
"""

import json
import sys
from typing import Any

_MOST_BYTES = 10 * 2**20


def count_parameters(config: dict[str, Any]) -> int:
    """Return the parameters of the model that transformers makes of a `config.json`; tied ones count once.

    Raises:
        ValueError: transformers has no causal language model of this type.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {
        key: value for key, value in config.items() if key not in ("model_type", "auto_map", "quantization_config")
    }
    with torch.device("meta"):
        made = AutoConfig.for_model(str(config["model_type"]), **values)
        model = AutoModelForCausalLM.from_config(made)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> int:
    """Print the count for the configuration on standard input, and return the exit code."""
    config = json.loads(sys.stdin.read(_MOST_BYTES))
    sys.stdout.write(json.dumps({"parameters": count_parameters(config)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
