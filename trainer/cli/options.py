"""Command-line options, generated from the settings of a job or a run."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from modules.settings.field import FieldRecord, Section, records_of
from modules.system.errors import DarkroomError
from modules.system.paths import from_caller
from trainer.cli.program import Verb
from trainer.jobs.spec import AdapterChoice, Argument, SectionT, argument_of, validate_settings


def settings_verb(summary: str, section: type[SectionT], run: Callable[[SectionT], int]) -> Verb:
    """Return a verb whose options are the settings of a section."""
    return Verb(
        summary,
        lambda parser: add_options(parser, section),
        lambda options: run(validate_settings(section, settings_of(options, section))),
    )


def add_options(parser: argparse.ArgumentParser, section: type[Section]) -> None:
    """Add an option or a positional argument for each setting."""
    for record in records_of(section):
        argument = argument_of(section, record.path)
        facts: dict[str, Any] = {**_value_facts(record, argument), "help": _help_of(record, argument)}
        if argument.is_positional:
            parser.add_argument(record.path, **facts)
        else:
            facts |= {"required": True} if argument.is_required else {}
            parser.add_argument(_flag_of(record, argument), dest=record.path, **facts)


def settings_of(options: argparse.Namespace, section: type[Section]) -> dict[str, Any]:
    """Return the values of parsed options by the names of settings, with paths resolved against the caller's folder.

    Raises DarkroomError for a file whose strength is not a number.
    """
    values: dict[str, Any] = {}
    for record in records_of(section):
        *sections, name = record.path.split(".")
        place = values
        for inner in sections:
            place = place.setdefault(inner, {})
        place[name] = _resolve(record, getattr(options, record.path))
    return values


def split_strength(word: str) -> tuple[str, float]:
    """Return a path and the strength behind it, as in `style.safetensors:0.8`; 1 without one.

    Raises DarkroomError for a strength that is not a finite number.
    """
    path, colon, strength = word.rpartition(":")
    if not colon or "/" in strength or "\\" in strength or (len(path) == 1 and path.isalpha()):  # C:\\...
        return word, 1.0
    try:
        number = float(strength)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DarkroomError(f"{strength!r} in {word!r} is not a strength.", advice="Write it as style.safetensors:0.8.")
    return path, number


def _flag_of(record: FieldRecord, argument: Argument) -> str:
    return argument.flag or f"--{record.name.replace('_', '-')}"


def _value_facts(record: FieldRecord, argument: Argument) -> dict[str, Any]:
    """Return how argparse reads the value of a setting."""
    facts: dict[str, Any] = {"default": record.default}
    if record.kind == "bool":
        return {**facts, "action": argparse.BooleanOptionalAction if record.default is True else "store_true"}
    metavar = argument.metavar or _PATHS.get(record.setting.path_kind, "")
    facts |= {"metavar": metavar} if metavar else {}
    if record.kind in ("list", "int_list"):
        facts |= {"type": _number_reader(replace(record, kind="int"))} if record.kind == "int_list" else {}
        if argument.is_positional or argument.takes_several:
            return {**facts, "nargs": "+"}
        return {**facts, "action": "append", "default": []}
    if argument.is_positional and not argument.is_required:
        facts["nargs"] = "?"
    if record.kind == "choice":
        return {**facts, "choices": [name for name in record.choices if name]}
    if record.kind in _NUMBERS:
        return {"metavar": "N", **facts, "type": _number_reader(record)}
    return facts


_PATHS: Mapping[str, str] = {"folder": "FOLDER", "file": "FILE", "save": "FILE"}
_NUMBERS: Mapping[str, str] = {"int": "whole number", "float": "number"}


def _number_reader(record: FieldRecord) -> Callable[[str], float]:
    """Return a function that reads a number of a setting's range."""

    def read(text: str) -> float:
        try:
            value = int(text) if record.kind == "int" else float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a {_NUMBERS[record.kind]}") from None
        is_below = record.lo is not None and (value <= record.lo if record.lo_is_open else value < record.lo)
        is_above = record.hi is not None and (value >= record.hi if record.hi_is_open else value > record.hi)
        if is_below or is_above or math.isnan(value):
            raise argparse.ArgumentTypeError(f"{text} is out of range: {record.allowed}")
        return value

    return read


def _help_of(record: FieldRecord, argument: Argument) -> str:
    """Return the help of an option: the help of its setting, with the default. argparse adds the choices."""
    text = f"{record.setting.help[:1].lower()}{record.setting.help[1:]}".removesuffix(".")
    default = "" if argument.is_required else _default_words(record)
    return f"{text} (default: {default})".replace("%", "%%") if default else text.replace("%", "%%")


def _default_words(record: FieldRecord) -> str:
    """Return the default of a setting; empty if there is none to mention."""
    if record.default is None or (record.default == 0 and record.setting.empty_means):
        return record.setting.empty_means
    if record.default == "":
        label = record.choices.get("", "")
        return f"{label[:1].lower()}{label[1:]}"
    if isinstance(record.default, bool):
        return "on" if record.default else ""
    unit = f" {record.setting.unit}" if record.setting.unit else ""
    return f"{record.default}{unit}" if record.default != () else ""


def _resolve(record: FieldRecord, value: Any) -> Any:
    """Return the value of an option as its setting needs it."""
    if record.kind == "list":
        item: Any = record.item  # of the records of a list a dataclass, too
        if item is AdapterChoice:
            return tuple(AdapterChoice(str(from_caller(path)), s) for path, s in map(split_strength, value))
        return tuple(str(from_caller(v)) for v in value) if record.setting.path_kind else tuple(value)
    return str(from_caller(value)) if record.setting.path_kind and value else value
