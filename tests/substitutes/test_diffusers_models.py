"""Models and schedulers of diffusers load without a checkpoint. Skipped where diffusers is not installed."""

import pytest
import torch

from profiler.domain.errors import UsageError
from profiler.domain.runs.other_runs import ScriptWeights
from profiler.substitutes import SubstituteOptions, substitutes

diffusers = pytest.importorskip("diffusers")

SD, SD2, XL = (
    "runwayml/stable-diffusion-v1-5",
    "stabilityai/stable-diffusion-2-1",
    "stabilityai/stable-diffusion-xl-base-1.0",
)

CHECKPOINTS = {
    (SD, "unet", "UNet2DConditionModel"): 859_520_964,
    (SD, "vae", "AutoencoderKL"): 83_653_863,
    (SD2, "unet", "UNet2DConditionModel"): 865_910_724,
    (XL, "unet", "UNet2DConditionModel"): 2_567_463_684,
}


@pytest.mark.parametrize(("name", "folder", "kind"), CHECKPOINTS)
def test_a_part_has_the_parameters_of_its_checkpoint(name: str, folder: str, kind: str) -> None:
    with substitutes() as replaced:
        model = getattr(diffusers, kind).from_pretrained(name, subfolder=folder, torch_dtype=torch.float16)
    assert sum(parameter.numel() for parameter in model.parameters()) == CHECKPOINTS[name, folder, kind]
    assert model.dtype is torch.float16
    assert not model.training
    assert f"weights of {name}/{folder} (random, from its configuration)" in replaced.phrases()


def test_a_scheduler_is_known() -> None:
    with substitutes():
        assert (
            diffusers.DDPMScheduler.from_pretrained(SD, subfolder="scheduler").config.beta_schedule == "scaled_linear"
        )


def test_the_defaults_of_a_class_are_assumed_and_named() -> None:
    with substitutes() as replaced:
        diffusers.AutoencoderKL.from_pretrained("somebody/own-model", subfolder="vae")
    assert "configuration of somebody/own-model/vae (assumed: the defaults of AutoencoderKL)" in replaced.phrases()


def test_nothing_is_assumed_with_the_weights_of_a_checkpoint() -> None:
    options = SubstituteOptions(weights=ScriptWeights.CHECKPOINT)
    with substitutes(options), pytest.raises((UsageError, OSError)):
        diffusers.AutoencoderKL.from_pretrained("somebody/own-model", subfolder="vae")
