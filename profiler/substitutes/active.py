"""All substitutes, switched on together. A library is patched when the script imports it, and not imported for that."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType

from profiler.domain.runs.other_runs import ScriptWeights
from profiler.seams.patching import Patch, around_import, patched, uncounted
from profiler.storage.foreign.hub import hub_problem
from profiler.substitutes.options import Replaced, SubstituteOptions, job_options
from profiler.substitutes.unavailable_packages import PACKAGES, asks_for_flash, flash_package

_DEFAULTS = SubstituteOptions()

_MODELS = "models"
"""In the folder of a job: folders of models."""

_Patches = Callable[[ModuleType], list[Patch]]


@contextmanager
def substitutes(options: SubstituteOptions = _DEFAULTS) -> Iterator[Replaced]:
    """While active, what a script loads and this machine lacks is replaced; yield what was.

    Enter it before the script's own imports: a function that a module has imported by name is not replaced there.
    """
    replaced = Replaced.noted_in(options.folder)
    with ExitStack() as stack:
        if options.folder is not None:  # a script that a process of a job runs is not known
            stack.enter_context(flash_package(replaced, options.folder / PACKAGES))
        elif options.has_flash_attn and asks_for_flash(options.script, options.arguments):
            stack.enter_context(flash_package(replaced))
        for module, patches in _by_module(options, replaced).items():
            _when_imported(stack, module, patches)
        yield replaced


def provide(variable: str) -> None:
    """From here to the end of this process, and in those that it forks, replace what the machine lacks.

    Args:
        variable: What `job_variables` has made of the options.
    """
    context = substitutes(job_options(variable))
    context.__enter__()
    _PROVIDED.append(context)


_PROVIDED: list[AbstractContextManager[Replaced]] = []
"""Kept: a context that is collected is left."""


def _when_imported(stack: ExitStack, name: str, patches: _Patches) -> None:
    def replace(module: ModuleType) -> None:
        stack.enter_context(patched(patches(module)))

    if name in sys.modules:
        replace(sys.modules[name])
    else:
        stack.callback(around_import(name, after=replace))


def _by_module(options: SubstituteOptions, replaced: Replaced) -> dict[str, _Patches]:
    """Return what is patched once each module is imported. The modules that do so import the libraries in turn."""

    def configurations(_: ModuleType) -> list[Patch]:
        from profiler.substitutes.checkpoints.models import configuration_patches

        return configuration_patches(options, replaced)

    def models(_: ModuleType) -> list[Patch]:
        from profiler.substitutes.checkpoints.models import model_patches

        return model_patches(options, replaced)

    def tokenizers(owner: str) -> _Patches:
        def patches(module: ModuleType) -> list[Patch]:
            from profiler.substitutes.checkpoints.tokenizers import tokenizer_patches

            return tokenizer_patches(getattr(module, owner), replaced)

        return patches

    def responses(module: ModuleType) -> list[Patch]:
        from profiler.substitutes.checkpoints.tokenizers import response_patches

        return response_patches(module)

    def data(_: ModuleType) -> list[Patch]:
        from profiler.substitutes.data_sets.answering_sets import data_patches

        return [*data_hub_patches(), *data_patches(options, replaced)]

    def modelscope_data(module: ModuleType) -> list[Patch]:
        from profiler.substitutes.data_sets.answering_sets import modelscope_patches

        return modelscope_patches(module)

    def diffusion_configurations(module: ModuleType) -> list[Patch]:
        from profiler.substitutes.checkpoints.diffusers_models import diffusers_configuration_patches

        return diffusers_configuration_patches(module, options, replaced)

    def diffusion_models(module: ModuleType) -> list[Patch]:
        from profiler.substitutes.checkpoints.diffusers_models import diffusers_model_patches

        return diffusers_model_patches(module, options, replaced)

    def image_processors(module: ModuleType) -> list[Patch]:
        from profiler.substitutes.checkpoints.tokenizers import image_processor_patches

        return image_processor_patches(module, replaced)

    def images(module: ModuleType) -> list[Patch]:
        from profiler.substitutes.data_sets.known_datasets import vision_patches

        return vision_patches(module, options, replaced)

    def metrics(module: ModuleType) -> list[Patch]:
        from profiler.substitutes.unavailable_packages import metric_patches

        return metric_patches(module, replaced)

    def of_job(name: str) -> _Patches:
        def patches(module: ModuleType) -> list[Patch]:
            from profiler.substitutes.checkpoints import known_configs

            if options.folder is None:
                return []
            found: list[Patch] = getattr(known_configs, name)(module, options.folder / _MODELS, replaced)
            return found

        return patches

    always: dict[str, _Patches] = {
        "huggingface_hub.constants": hub_patches,
        "huggingface_hub.file_download": of_job("cached_file_patches"),
        "huggingface_hub._snapshot_download": of_job("snapshot_patches"),
        "modelscope.hub.snapshot_download": of_job("snapshot_patches"),
        "modelscope.msdatasets.ms_dataset": modelscope_data,
        "datasets": data,
        "transformers.tokenization_utils_base": tokenizers("PreTrainedTokenizerBase"),
        "transformers.models.auto.tokenization_auto": tokenizers("AutoTokenizer"),
        "transformers.models.auto.processing_auto": tokenizers("AutoProcessor"),
        "transformers.models.auto.image_processing_auto": image_processors,
        "transformers.configuration_utils": configurations,
        "trl.chat_template_utils": responses,
        "torchvision.datasets": images,
        "evaluate": metrics,
        "diffusers.configuration_utils": diffusion_configurations,
        "diffusers.models.modeling_utils": diffusion_models,
    }
    return always if options.weights is ScriptWeights.CHECKPOINT else always | {"transformers.modeling_utils": models}


def hub_patches(constants: ModuleType) -> list[Patch]:
    """Return the patches of `huggingface_hub.constants`: nothing is reported, and no hub asked that does not answer."""
    return [*uncounted(constants), *([(constants, "HF_HUB_OFFLINE", True)] if hub_problem() else [])]


def data_hub_patches() -> list[Patch]:
    """Return the patch that switches the client of datasets off where the hub does not answer."""
    import datasets.config

    return [(datasets.config, "HF_HUB_OFFLINE", True)] if hub_problem() else []
