"""The settings of Krea 2."""

from __future__ import annotations

from typing import Literal

from modules.families.settings import FamilySettings


class Krea2Settings(FamilySettings):
    """12.9 billion weights: Raw to train, Turbo to sample in few steps."""

    name: Literal["krea2"] = "krea2"
