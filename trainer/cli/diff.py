"""diff: the settings in which two configs differ, or one config from the defaults."""

from __future__ import annotations

import argparse
import json
import sys

from modules.config.compare import differing_paths
from modules.config.schema import Config
from modules.settings.edit import get_path
from modules.system.problem import cut
from trainer.cli import Verb
from trainer.cli.options import add_config_argument, read_config

_ABSENT = "nothing"


def differences(one: Config, other: Config) -> list[tuple[str, str, str]]:
    """Return each path in which two configs differ, with both values as JSON."""
    return [(path, _shown(one, path), _shown(other, path)) for path in differing_paths(one, other)]


def _shown(config: Config, path: str) -> str:
    try:
        value = get_path(config, path)
    except KeyError:
        return _ABSENT
    plain = [v.model_dump() if hasattr(v, "model_dump") else v for v in value] if isinstance(value, tuple) else value
    return json.dumps(plain, ensure_ascii=False, default=str)


def _diff(options: argparse.Namespace) -> int:
    config = read_config(options.config, options.changes, preset=options.preset).config
    other = read_config(options.other, []).config if options.other else Config()
    rows = differences(config, other)
    if options.json:
        data = [{"path": path, "value": value, "other": before} for path, value, before in rows]
        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
        return 0
    name = options.other or "the defaults"
    if not rows:
        sys.stdout.write(f"No setting differs from {name}.\n")
    for path, value, before in rows:
        sys.stdout.write(f"{path} = {cut(value, max_chars=100)}   ({name}: {cut(before, max_chars=60)})\n")
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_config_argument(parser)
    parser.add_argument(
        "other", metavar="OTHER", nargs="?", default="", help="a config file or a preset (default: the defaults)"
    )
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")


DIFF = Verb("list the settings of a config that differ from another config or the defaults", _arguments, _diff)
