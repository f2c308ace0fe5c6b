"""`AutoImageProcessor.from_pretrained`, answered by the processor of the model's type where its files are not here."""

from types import ModuleType
from typing import Any

from profiler.seams.patching import Patch
from profiler.substitutes.replaced import Replaced


def image_processor_patches(module: ModuleType, replaced: Replaced) -> list[Patch]:
    """Return the patch of the class that finds image processors."""
    owner = module.AutoImageProcessor
    load = owner.from_pretrained.__func__
    return [(owner, "from_pretrained", classmethod(_loading(load, module.IMAGE_PROCESSOR_MAPPING, replaced)))]


def _loading(load: Any, classes: Any, replaced: Replaced) -> Any:
    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(cls, pretrained_model_name_or_path, *args, **kwargs)
        except OSError:
            made = _made(str(pretrained_model_name_or_path), classes)
            if made is None:
                raise
            replaced.add(
                "image processor of", str(pretrained_model_name_or_path), f"the defaults of {type(made).__name__}"
            )
            return made

    return from_pretrained


def _made(name: str, classes: Any) -> Any:
    """Return a processor for the configuration of a model, with the size of its images; None if its type has none."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(name)
    try:
        found = classes[type(config)]
    except KeyError:
        return None
    kinds = (found.get("torchvision"), found.get("pil")) if isinstance(found, dict) else tuple(found)[::-1]
    kind = next((each for each in kinds if each is not None), None)
    if kind is None:
        return None
    made = kind()
    pixels = getattr(config, "image_size", None)
    if isinstance(pixels, int) and "height" in (made.size or ()):
        made.size = {"height": pixels, "width": pixels}
    return made
