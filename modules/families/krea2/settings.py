"""The settings of Krea 2."""

from __future__ import annotations

from typing import Literal

from modules.families.settings import FamilySettings


class Krea2Settings(FamilySettings):
    """Krea 2."""

    name: Literal["krea2"] = "krea2"
