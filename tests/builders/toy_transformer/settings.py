"""The settings of the toy transformer."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.families.settings import FamilySettings
from modules.settings.field import Setting


class ToyTransformerSettings(FamilySettings):
    """A toy flow-matching transformer."""

    name: Literal["toy_transformer"] = "toy_transformer"
    text_tokens: Annotated[
        int,
        Ge(1),
        Le(64),
        Setting("Text tokens", "How many tokens of a prompt are read at most.", group="Base model", level="advanced"),
    ] = 48
