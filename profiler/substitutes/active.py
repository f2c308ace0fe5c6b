"""All substitutes, switched on together."""

from collections.abc import Iterator
from contextlib import contextmanager

from profiler.seams.patching import patched
from profiler.substitutes.data import data_patches
from profiler.substitutes.models import model_patches
from profiler.substitutes.offline import offline_patches
from profiler.substitutes.options import SubstituteOptions
from profiler.substitutes.replaced import Replaced
from profiler.substitutes.tokenizers import tokenizer_patches

_DEFAULTS = SubstituteOptions()


@contextmanager
def substitutes(options: SubstituteOptions = _DEFAULTS) -> Iterator[Replaced]:
    """While active, what a script loads and this machine lacks is replaced; yield what was.

    Enter it before the script's own imports: a function that a module has imported by name is not replaced there.
    """
    replaced = Replaced()
    patches = [
        *offline_patches(),
        *model_patches(options, replaced),
        *tokenizer_patches(replaced),
        *data_patches(options, replaced),
    ]
    with patched(patches):
        yield replaced
