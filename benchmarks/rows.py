"""A measured row of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: its name, its value as text, the goal, and the measured numbers."""

    name: str
    value: str
    goal: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
