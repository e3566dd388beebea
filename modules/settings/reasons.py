"""Explains why a value is not valid: pydantic's findings in plain words, without its own terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.system.problem import cut

_MOST_NAMED = 16
_KINDS: Mapping[str, str] = {
    "int_type": "it should be a whole number",
    "int_parsing": "it should be a whole number",
    "int_from_float": "it should be a whole number",
    "int_parsing_size": "it has too many digits for a whole number",
    "float_type": "it should be a number",
    "float_parsing": "it should be a number",
    "finite_number": "it should be a finite number",
    "bool_type": "it should be true or false",
    "bool_parsing": "it should be true or false",
    "string_type": "it should be text",
    "tuple_type": "it should be a list",
    "model_type": "it should be a group of settings in braces",
    "too_short": "it should have at least one entry",
}


def reason_of(finding: Mapping[str, Any]) -> str:
    """Return one pydantic finding as half a sentence, without a full stop: what the value should be."""
    if finding["type"] == "model_type" and finding["ctx"]["class_name"] == "Every":
        return 'it should be a number and a unit, such as {"n": 10, "unit": "step"}'
    if finding["type"] in _KINDS:
        return _KINDS[finding["type"]]
    if finding["type"] == "union_tag_invalid":
        return f"there is no such choice; the choices are {_named(finding['ctx']['expected_tags'].split(', '))}"
    message = str(finding["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")
    message = message.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    message = message.replace("greater than", "above").replace("less than", "below")
    return cut(f"{message[:1].lower()}{message[1:]}", max_chars=200)


def _named(choices: list[str]) -> str:
    """Return choices as a list, only counting those beyond the first few."""
    rest = f" and {len(choices) - _MOST_NAMED} more" if len(choices) > _MOST_NAMED else ""
    return ", ".join(choices[:_MOST_NAMED]) + rest
