"""What several verbs share: naming a config, and changing settings of it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from modules.config.codec import Loaded
from modules.config.edit import set_path
from modules.config.imports.any_file import load_any
from modules.config.presets import list_presets
from modules.config.problem import Problem
from modules.config.schema import Config
from modules.errors import DarkroomError
from modules.system.paths import from_caller


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG and --set."""
    parser.add_argument("config", metavar="CONFIG", help="a config file, or the name of a preset such as '#demo'")
    add_set_argument(parser)


def add_set_argument(parser: argparse.ArgumentParser) -> None:
    """Add --set."""
    parser.add_argument(
        "--set",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        dest="changes",
        help="change one setting, as in training.epochs=20; may be given several times",
    )


def read_config(name: str, changes: list[str]) -> Loaded:
    """Return the config of a file or a preset, with changes. Raises DarkroomError where there is none, or a change
    does not fit.
    """
    path = from_caller(name)
    if path.is_file():
        loaded = load_any(path)
    else:
        preset = next((p for p in list_presets() if name in (p.name, p.name.lstrip("#"))), None)
        if preset is None:
            names = ", ".join(p.name for p in list_presets())
            raise DarkroomError(f"There is no file {path} and no preset {name!r}.", advice=f"Presets are: {names}.")
        loaded = preset.load()
    fatal = [p for p in loaded.problems if p.severity == "error" and not p.path]
    if fatal:
        raise DarkroomError(str(fatal[0]))
    return Loaded(changed(loaded.config, changes), loaded.problems, loaded.was_migrated)


def changed(config: Config, changes: list[str]) -> Config:
    """Return the config with `path=value` changes. Raises DarkroomError for one that does not fit."""
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise DarkroomError(f"--set {change} has no value.", advice="Write it as --set training.epochs=20.")
        try:
            config, problems = set_path(config, path.strip(), _value(text))
        except KeyError as error:
            raise DarkroomError(str(error.args[0])) from error
        if problems:
            raise DarkroomError(f"--set {change}: {problems[0].message}")
    return config


def describe(problem: Problem) -> str:
    """Return a problem as a line."""
    return f"{problem.severity.upper():8}{problem}"


def _value(text: str) -> Any:
    """Return what a text means: JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
