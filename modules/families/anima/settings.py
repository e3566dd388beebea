"""The settings of Anima."""

from __future__ import annotations

from typing import Annotated, Literal

from modules.families.settings import FamilySettings
from modules.settings.field import Setting

CONDITIONER = "text_conditioner"
"""The part that makes the transformer's text of Qwen3's states."""


class AnimaSettings(FamilySettings):
    """2 billion weights, for anime and drawings."""

    name: Literal["anima"] = "anima"
    train_conditioner: Annotated[
        bool,
        Setting(
            "Train the text conditioner",
            "Also trains the small network between Qwen3 and the transformer, with a learning rate of its own. It "
            "holds much of what the model knows of tags, artists and characters, and its makers advise against it. "
            "Prompts are encoded in each step then, as they cannot be cached.",
            group="Base model",
            level="advanced",
        ),
    ] = False

    @property
    def frozen_parts(self) -> frozenset[str]:
        """The conditioner, unless it is to be trained."""
        return frozenset() if self.train_conditioner else frozenset({CONDITIONER})
