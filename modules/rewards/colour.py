"""Parsing colours. Torch-free."""

from __future__ import annotations

import re

from modules.system.errors import DarkroomError
from modules.system.problem import shown


def parse_colour(text: str) -> tuple[float, float, float]:
    """Return red, green and blue in [0, 1] of "#rrggbb". Raises DarkroomError for anything else."""
    if not re.fullmatch(r"#?[0-9a-fA-F]{6}", text.strip()):
        raise DarkroomError(f"{shown(text)} is not a valid colour.", advice="Enter it as #rrggbb, for example #ff8000.")
    digits = text.strip().removeprefix("#")
    red, green, blue = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    return red, green, blue
