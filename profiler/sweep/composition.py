"""Compose the configuration of a sweep with Hydra. No job runs under Hydra, so it creates no folder and no log."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from profiler.config.reading import show
from profiler.config.run_options import RUN_KEYS
from profiler.config.specification import unknown_key
from profiler.domain.errors import EXIT_OK, EXIT_USAGE, Fault, UsageError, nearest
from profiler.sweep.command import ALL_KEYS, GRID, GRID_FILE_KEYS, Command

_VERSION_BASE = "1.3"

_CONFIG_NAME = "config"


def sweep_folders() -> list[Path]:
    """Return the folders of grids, the first wins: ./sweeps, the checkout's, the copy in an installed package."""
    package = Path(__file__).resolve().parent.parent
    candidates = [Path.cwd() / "sweeps", package / "sweeps"]
    if (package.parent / "pyproject.toml").is_file():
        candidates.insert(1, package.parent / "sweeps")
    return [folder for folder in dict.fromkeys(candidates) if folder.is_dir()]


class SweepSearchPath(SearchPathPlugin):  # type: ignore[misc]
    """Adds `sweep_folders` to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folders after those that Hydra knows already."""
        for folder in sweep_folders():
            search_path.append(provider="sweeps", path=folder.as_uri())


def compose(command: Command) -> dict[str, object]:
    """Return the composed configuration as plain values: run options resolved, a trial's ``${key}`` unchanged.

    Raises:
        UsageError: The grid is missing, unknown or one of several, or Hydra reports an error; one sentence per fault.
    """
    with _initialised(command.config_dir):
        grid = _the_grid(command.grids)
        try:
            config = hydra.compose(_CONFIG_NAME, overrides=[f"+{GRID}={grid}", *command.settings])
            values = _plain_values(config)
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            raise _usage_error(error, command.settings, grid) from error
    known = (*ALL_KEYS, *GRID_FILE_KEYS)
    faults = [unknown_key(key, values[key], known) for key in values if key not in known]
    if faults:
        raise UsageError(faults)
    return values


def show_instead(command: Command) -> int:
    """Let Hydra answer --help, --cfg, --info and similar flags, and return the exit code.

    Args:
        command: The command line.

    Raises:
        UsageError: As in `compose`. Without a grid Hydra shows the defaults.
    """
    if command.grids:
        compose(command)
    Plugins.instance().register(SweepSearchPath)
    grids = [f"+{GRID}={grid}" for grid in command.grids]
    axes = [f"{key}={_hydra_text(values)}" for key, values in command.axes.items()]
    answer = hydra.main(
        version_base=_VERSION_BASE, config_path=str(_first_folder(command.config_dir)), config_name=_CONFIG_NAME
    )(_never_called)
    # Hydra installs shell completion for the first word, by which the shell knows a program.
    saved, sys.argv = sys.argv, ["grpo-vram", *command.show_flags, *grids, *axes, *command.settings]
    try:
        answer()
    except SystemExit as end:
        return EXIT_OK if end.code in (None, EXIT_OK) else EXIT_USAGE
    finally:
        sys.argv = saved
    return EXIT_OK


def _never_called(_: DictConfig) -> None:
    """Take the place of a Hydra application's job, which flags that print something do not run."""


def _hydra_text(values: Sequence[object]) -> str:
    """Return values as one override in Hydra's grammar: a list if the user gave several."""
    texts = [_hydra_value(value) for value in values]
    return texts[0] if len(texts) == 1 else f"[{','.join(texts)}]"


def _hydra_value(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(_hydra_value(item) for item in value)}]"
    return json.dumps(value) if isinstance(value, str) else show(value)


@contextmanager
def _initialised(config_dir: str | None) -> Iterator[None]:
    Plugins.instance().register(SweepSearchPath)
    with hydra.initialize_config_dir(config_dir=str(_first_folder(config_dir)), version_base=_VERSION_BASE):
        yield


def _first_folder(config_dir: str | None) -> Path:
    if config_dir is not None:
        folder = Path(config_dir).absolute()
        if not config_dir or not folder.is_dir():
            raise UsageError([Fault(key="--config-dir", found=config_dir, problem="must be a folder that exists")])
        return folder
    folders = sweep_folders()
    if not folders:
        raise UsageError([Fault(key="grid", found="?", problem="there is no folder sweeps with grids")])
    return folders[0]


def _the_grid(named: Sequence[str]) -> str:
    """Return the one grid that is named. Hydra must be initialised."""
    known = GlobalHydra.instance().config_loader().get_group_options(GRID)
    listed = f"the grids are {', '.join(known)}"
    if not named:
        raise _grid_fault("(none)", f"a sweep needs a grid; {listed}", "Add +grid=NAME.")
    if len(named) > 1:
        raise _grid_fault(",".join(named), "names several grids, but a sweep runs one", "Run one sweep per grid.")
    if named[0] not in known:
        raise _grid_fault(named[0], f"is not a grid; {listed}", nearest(named[0], known))
    return named[0]


def _grid_fault(found: str, problem: str, hint: str) -> UsageError:
    return UsageError([Fault(key=GRID, found=found, problem=problem, hint=hint)])


def _plain_values(config: DictConfig) -> dict[str, object]:
    values = OmegaConf.to_container(config, resolve=False)
    if not isinstance(values, dict):
        raise TypeError("the composed configuration must be a mapping")
    resolved = {key: config[key] for key in RUN_KEYS if key in config}
    return {str(key): value for key, value in values.items()} | resolved


def _usage_error(error: Exception, settings: Sequence[str], grid: str) -> UsageError:
    """Return an error of Hydra or YAML in our form: about the override that it quotes, or else about the grid."""
    said = " ".join(str(error).split()).rstrip(".")
    quoted = re.findall(r"'([^']+)'", said)
    for setting in settings:
        key, _, value = setting.lstrip("+").partition("=")
        if any(word in (key, setting) for word in quoted):
            return UsageError([Fault(key=key, found=value, problem=f"Hydra refuses it: {said}")])
    return _grid_fault(grid, f"cannot be composed: {said}", "")
