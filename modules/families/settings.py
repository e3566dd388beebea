"""The base of the settings that only one model family has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from modules.settings.conditions import USES_DENOISER
from modules.settings.field import Section, When


class FamilySettings(Section):
    """The settings of one family, `model.family`: its name, and what no other family has.

    A family without settings of its own needs only the name. The methods answer what code outside of the family asks.
    """

    group: ClassVar[str] = "Base model"
    applies_when: ClassVar[When | None] = USES_DENOISER

    name: str

    def skipped_layers(self, encoder: str) -> int:
        """Return how many of a text encoder's last layers are skipped, beyond those that the family always skips."""
        return 0

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the layers of a part of a model variant that no gradient reaches, by the beginnings of their names."""
        return ()

    @property
    def frozen_parts(self) -> frozenset[str]:
        """The parts that these settings keep as they are, whatever else is trained."""
        return frozenset()

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return how many tokens of a prompt are read at once: of `TextSpec.chunk_tokens`, `most`, usually all.

        `denoiser` is the config of the base model's denoiser; it may be empty.
        """
        return most

    @property
    def reads_weights(self) -> bool:
        """Whether prompts may contain weights of words, as in (word:1.2)."""
        return False
