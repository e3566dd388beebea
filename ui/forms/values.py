"""Field values to and from text.

Only the syntax is checked here; `modules.settings.edit.set_path` validates the value.
"""

from __future__ import annotations

import re
from typing import Any

from modules.settings.every import Every
from modules.settings.field import FieldRecord


def to_text(record: FieldRecord, value: Any) -> str:
    """Return a value of the field as text; `from_text` reverses it."""
    match value:
        case None:
            return ""
        case float():
            return _float_text(value)
        case Every():
            return str(value)
        case tuple():
            return ", ".join(str(v) for v in value)
        case _:
            return str(value)


def from_text(record: FieldRecord, text: str) -> Any:
    """Return the value of a text. Raises ValueError with a message for the user."""
    stripped = text.strip()
    match record.kind:
        case "text":
            return text
        case _ if not stripped and record.optional:
            return None
        case "int":
            return whole_number(stripped)
        case "float":
            return number(stripped)
        case "int_list":
            return tuple(whole_number(part) for part in stripped.replace(";", ",").split(",") if part.strip())
        case "resolutions":
            return tuple(_resolution(part) for part in stripped.replace(";", ",").split(",") if part.strip())
        case _:
            return stripped


def _resolution(text: str) -> int | str:
    """Return a number of pixels, or a size such as 1024x768. Raises ValueError with a message for the user."""
    sides = [whole_number(side) for side in re.split("[xX×]", text)]
    return sides[0] if len(sides) == 1 else "x".join(map(str, sides))


def number(text: str) -> float:
    """Return a number typed with a point or a comma. Raises ValueError with a message for the user."""
    plain = text.strip().replace(" ", "")
    if "." not in plain and plain.count(",") == 1:
        plain = plain.replace(",", ".")
    try:
        return float(plain)
    except ValueError:
        raise ValueError(_missing(text) or f"{text!r} is not a number.") from None


def whole_number(text: str) -> int:
    """Return a whole number. Raises ValueError with a message for the user."""
    try:
        return int(text.strip().replace(" ", ""))
    except ValueError:
        raise ValueError(_missing(text) or f"{text.strip()!r} is not a whole number.") from None


def why_out_of_range(record: FieldRecord, value: Any) -> str:
    """Return an error message for a number outside the field's range; else an empty text."""
    numbers = value if isinstance(value, tuple) else (value,)
    for n in numbers:
        if not isinstance(n, int | float) or isinstance(n, bool):
            return ""
        is_below = record.lo is not None and (n <= record.lo if record.lo_is_open else n < record.lo)
        is_above = record.hi is not None and (n >= record.hi if record.hi_is_open else n > record.hi)
        is_between_steps = record.step is not None and n % record.step != 0
        if is_below or is_above or is_between_steps:
            unit = f" {record.setting.unit}" if record.setting.unit else ""
            return f"{to_text(record, n)} is out of range. Allowed: {record.allowed}{unit}."
    return ""


def display(record: FieldRecord, value: Any) -> str:
    """Return a value as tooltips and menus show it: labels for choices, on and off, the meaning of empty."""
    match record.kind:
        case "bool":
            return "on" if value else "off"
        case "choice":
            return record.choices.get(str(value), str(value))
        case "section":
            name = str(getattr(value, "name", value))
            return record.choices.get(name, name)
        case "list" | "map":
            return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}" if value else "none"
        case "every" if record.setting.is_span:
            return str(value.span)
        case _:
            text = to_text(record, value)
            unit = f" {_unit_of(value, record.setting.unit)}" if record.setting.unit and text else ""
            return f"{text}{unit}" or record.setting.empty_means or "empty"


def _unit_of(value: Any, unit: str) -> str:
    """Return a unit, in the singular for 1."""
    return unit.removesuffix("es" if unit.endswith("ches") else "s") if value == 1 and len(unit) > 2 else unit


def _missing(text: str) -> str:
    return "" if text.strip() else "Enter a number."


def _float_text(value: float) -> str:
    if abs(value) < 1e15 and value == int(value):  # infinity and NaN are not whole numbers
        return str(int(value))
    return repr(value).replace("e-0", "e-")
