"""Functions of the runner take few parameters: what belongs together is passed as one value."""

import importlib
import inspect
import pkgutil
from dataclasses import is_dataclass

import pytest

import profiler.execution
import profiler.sweep

MOST = 8

MODULES = sorted(
    module.name
    for package in (profiler.execution, profiler.sweep)
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    if not module.name.endswith("__main__")
)


def functions(module_name):
    """Functions, methods and constructors that the module defines; of the sweep without those of its values."""
    for _, found in inspect.getmembers(importlib.import_module(module_name)):
        if getattr(found, "__module__", None) != module_name:
            continue
        if inspect.isfunction(found):
            yield found
        elif inspect.isclass(found):
            is_value = module_name.startswith("profiler.sweep.") and is_dataclass(found)
            methods = inspect.getmembers(found, inspect.isfunction)
            yield from (method for name, method in methods if not (is_value and name == "__init__"))


@pytest.mark.parametrize("module_name", MODULES)
def test_no_function_takes_more_than_eight_parameters(module_name):
    too_many = {
        f"{function.__qualname__}: {len(parameters)}"
        for function in functions(module_name)
        if len(parameters := [name for name in inspect.signature(function).parameters if name != "self"]) > MOST
    }
    assert too_many == set()
