"""Compose the configuration of a sweep with Hydra. No job runs under Hydra, so it creates no folder and no log."""

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from pathlib import Path
from textwrap import fill

import hydra
from hydra._internal.core_plugins import structured_config_source
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from profiler.command_line import print_text
from profiler.config.foreign_text import MOST_YAML_BYTES, ForeignTextError, parse_yaml
from profiler.config.options.command_words import HELP_FLAGS
from profiler.config.options.reading import show, unknown_key
from profiler.config.options.run_options import RUN_KEYS, run_options_help, trial_keys_help
from profiler.config.trials.specification import AUTO
from profiler.domain.errors import EXIT_OK, Fault, UsageError, nearest
from profiler.storage.files.foreign_files import Kind, kind_of, read_bytes, reason
from profiler.sweep.command import ALL_KEYS, GRID, GRID_FILE_KEYS, Command

_VERSION_BASE = "1.3"

_CONFIG_NAME = "config"


def sweep_folders() -> list[Path]:
    """Return the folders of grids, the first wins: ./sweeps, the checkout's, the copy in an installed package."""
    package = Path(__file__).resolve().parents[2]
    candidates = [Path.cwd() / "sweeps", package / "sweeps"]
    if (package.parent / "pyproject.toml").is_file():
        candidates.insert(1, package.parent / "sweeps")
    return [folder for folder in dict.fromkeys(candidates) if folder.is_dir()]


class LimitedFileSource(FileConfigSource):  # type: ignore[misc]
    """Hydra's configuration files, each checked against the limits of `foreign_text` before Hydra reads it."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a configuration.

        Raises:
            ForeignTextError: It exceeds a limit, or is not valid YAML.
            OSError: It cannot be read.
        """
        path = Path(self.path) / self._normalize_file_name(config_path)
        if kind_of(path) is Kind.MISSING:
            return super().load_config(config_path)
        text = read_bytes(path, most_bytes=MOST_YAML_BYTES).decode()
        # Hydra changes what it is given.
        return deepcopy(_loaded(FileConfigSource, self.provider, self.full_path(), config_path, text))


_HYDRA = "hydra"
"""The provider of Hydra's own configuration."""


_GROUPS_ARE_LOADED = ContextVar("_GROUPS_ARE_LOADED", default=True)
"""Whether Hydra loads the groups of its own configuration: where a job logs and how it is launched. They take 60 % of
the time of composing, and no job runs under Hydra."""


class KeptPackageSource(ImportlibResourcesConfigSource):  # type: ignore[misc]
    """Hydra's own configuration files, which stay what they are, each read once."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a configuration."""
        if self.provider != _HYDRA:
            return super().load_config(config_path)
        return deepcopy(_loaded(ImportlibResourcesConfigSource, self.provider, self.full_path(), config_path, ""))


class StructuredConfigSource(structured_config_source.StructuredConfigSource):  # type: ignore[misc]
    """Schemas, in one store, which Hydra copies twice per configuration. It looks for a class of this name."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a schema."""
        result = super().load_config(config_path)
        if not _GROUPS_ARE_LOADED.get() and config_path == f"{_HYDRA}/config":
            result.config.defaults = []
        return result

    def __deepcopy__(self, _memo: dict[int, object]) -> "StructuredConfigSource":
        return self


_MOST_LOADED = 64
"""Files of which what Hydra read is kept. One configuration has some twelve."""


@lru_cache(maxsize=_MOST_LOADED)
def _loaded(source: type[ConfigSource], provider: str, folder: str, name: str, text: str) -> ConfigResult:
    """Return what Hydra reads of a file. Its parser takes half of the time of composing.

    Args:
        source: What reads it.
        provider: Of the folder, by Hydra's name.
        folder: The folder or package.
        name: The file's path in it.
        text: The file's content, if it can change.
    """
    if text:
        parse_yaml(text)
    return source(provider=provider, path=folder).load_config(name)


_PACKAGE_LINE = "# @package _global_"
"""By which Hydra puts the keys of a grid's file at the top of the configuration."""


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
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*is not available")  # a folder of hydra.searchpath
                config = _composed([f"+{GRID}={grid}", *command.settings])
            values = _plain_values(config)
        except Exception as error:  # Hydra raises anything at a wrong grid: its own errors, ValueError, RecursionError
            raise _usage_error(error, command.settings, grid) from error
    # Without the line every key of the file is below `grid`; with it, `grid` is a key that the file itself has.
    if GRID in values and not set(values) & set(GRID_FILE_KEYS):
        hint = f"Begin its file with the line '{_PACKAGE_LINE}'."
        problem = (
            f"has keys below {GRID}, which do not count for the sweep, because a line is missing or {GRID} is its key"
        )
        raise _grid_fault(grid, problem, hint)
    known = (*ALL_KEYS, *GRID_FILE_KEYS)
    faults = [unknown_key(key, values[key], known) for key in values if key not in known]
    if faults:
        raise UsageError(faults)
    return values


def _composed(overrides: list[str]) -> DictConfig:
    """Return what Hydra composes, without the groups of its own configuration if nothing names one."""
    by_hydra: Callable[..., DictConfig] = hydra.compose
    token = _GROUPS_ARE_LOADED.set(False)
    try:
        return by_hydra(_CONFIG_NAME, overrides=overrides)
    except Exception as error:
        if _HYDRA not in str(error):
            raise
    finally:
        _GROUPS_ARE_LOADED.reset(token)
    return by_hydra(_CONFIG_NAME, overrides=overrides)


def show_instead(command: Command) -> int:
    """Print the help, or let Hydra answer --cfg, --info and similar flags, and return the exit code.

    Args:
        command: The command line.

    Raises:
        UsageError: As in `compose`. Without a grid Hydra shows the defaults.
    """
    if command.grids:
        compose(command)
    if set(command.show_flags) & set(HELP_FLAGS):
        print_text(usage(_known_grids(command.config_dir)))
        return EXIT_OK
    _prepare_hydra()
    grids = [f"+{GRID}={grid}" for grid in command.grids]
    axes = [f"{key}={_hydra_text(values)}" for key, values in command.axes.items()]
    answer = hydra.main(
        version_base=_VERSION_BASE, config_path=str(_first_folder(command.config_dir)), config_name=_CONFIG_NAME
    )(_never_called)
    # Hydra installs shell completion for the first word, by which the shell knows a program.
    saved, sys.argv = sys.argv, ["grpo-vram", *command.show_flags, *grids, *axes, *command.settings]
    shown, said = StringIO(), StringIO()
    try:
        with redirect_stdout(shown), redirect_stderr(said):
            answer()
    except SystemExit as end:
        if end.code not in (None, EXIT_OK):
            raise _refused(command, said.getvalue()) from end
    finally:
        sys.argv = saved
    print_text(shown.getvalue())
    return EXIT_OK


def _known_grids(config_dir: str | None) -> list[str]:
    with _initialised(config_dir):
        return list(GlobalHydra.instance().config_loader().get_group_options(GRID))


def _refused(command: Command, said: str) -> UsageError:
    """Return the last line of Hydra's error, which may have a traceback above it."""
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "it gives no reason").rstrip(".")
    return UsageError([Fault(key="flag", found=" ".join(command.show_flags), problem=f"Hydra refuses it: {last}")])


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
    _prepare_hydra()
    with hydra.initialize_config_dir(config_dir=str(_first_folder(config_dir)), version_base=_VERSION_BASE):
        yield


def _prepare_hydra() -> None:
    """Register the folders of grids, and the reader of their files in place of Hydra's own."""
    Plugins.instance().register(SweepSearchPath)
    for source in (LimitedFileSource, KeptPackageSource, StructuredConfigSource):
        SourcesRegistry.instance().types[source.scheme()] = source


def _first_folder(config_dir: str | None) -> Path:
    if config_dir is not None:
        try:
            folder = Path(config_dir).absolute()
            if config_dir and kind_of(folder) is Kind.FOLDER:
                return folder
            problem = "must be a folder that exists"
        except OSError as error:
            problem = f"cannot be read ({reason(error)})"
        raise UsageError([Fault(key="--config-dir", found=config_dir, problem=problem)])
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
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if isinstance(error, RecursionError):
        said = "its list of defaults includes itself, directly or by another file"
    elif isinstance(error, ForeignTextError):
        said = f"its file {said}"
    elif isinstance(error, UnicodeDecodeError):
        said = f"a file of it is not text in UTF-8 ({said})"
    quoted = re.findall(r"'([^']+)'", said)
    for setting in settings:
        key, _, value = setting.lstrip("+").partition("=")
        if any(word in (key, setting) for word in quoted):
            return UsageError([Fault(key=key, found=value, problem=f"Hydra refuses it: {said}")])
    return _grid_fault(grid, f"cannot be composed: {said}", "")


_WIDTH = 80


def usage(grids: Sequence[str]) -> str:
    """Return the text, with the names of the grids."""
    listed = fill(", ".join(grids), _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return f"""\
python -m profiler.sweep +grid=NAME [key=value ...] [key=a,b ...]

Run the trials of a grid, each in a process of its own, and write a report to
<results_dir>/NAME/. Several values of a key, separated by commas, give one trial
per combination. dry_run=true lists the trials with their estimates.

Grids:
{listed}

Keys of a trial [default]:
{trial_keys_help(given=AUTO)}
Run options (docs/run_options.md) [default]:
{run_options_help()}
python=ENV1,ENV2 runs the trials in each environment and compares them;
max_increase=2% then ends with exit code 4 if a peak grew by more.

--cfg job shows the composed configuration, --info what Hydra read, -cd DIR adds
a folder of grids. Exit codes: docs/exit_codes.md.

Examples:
  python -m profiler.sweep +grid=lora_vs_full
  python -m profiler.sweep +grid=lora_vs_full gpu=rtx-4090-24gb,a100-40gb
  python -m profiler.sweep +grid=completion_length dry_run=true
  python -m profiler.sweep +grid=guard python=venv-old,venv-new max_increase=2%
"""
