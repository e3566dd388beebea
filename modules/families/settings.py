"""The base of the settings that only one model family has, and a field that several have."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le

from modules.settings.conditions import USES_DENOISER
from modules.settings.field import Section, When, advanced_setting

TRAINING_GUIDANCE = advanced_setting(
    "Training guidance",
    "The guidance scale that the model gets in training; samples have their own. At 1 the model learns the images as "
    "they are.",
)
TrainingGuidance = Annotated[float, Ge(0.0), Le(100.0), TRAINING_GUIDANCE]


class FamilySettings(Section):
    """The settings of one family, `model.family`: its name, and what no other family has.

    A family without settings of its own needs only the name. Other code uses the methods, not the fields.
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
        """Return how many tokens of a prompt are read at once: usually `most`, the family's `TextSpec.chunk_tokens`.

        `denoiser` is the config of the base model's denoiser; it may be empty.
        """
        return most

    @property
    def reads_weights(self) -> bool:
        """Whether prompts may contain weights of words, as in (word:1.2)."""
        return False
