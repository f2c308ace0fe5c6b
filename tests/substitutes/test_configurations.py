"""Configurations of built-in models, as a script that names one gets them."""

import pytest
import transformers

from profiler.domain.models.builtin_models import BUILTIN_MODELS, VISION_MODELS
from profiler.substitutes.checkpoints.known_configs import builtin_config


@pytest.mark.parametrize("model", (BUILTIN_MODELS | VISION_MODELS).values(), ids=lambda model: model.name)
def test_every_built_in_model_names_its_class(model):
    found = builtin_config(model.name)
    assert found is not None
    (name,) = found["architectures"]
    assert getattr(transformers, name).config_class.model_type == model.config["model_type"]
