"""The noise process of a family, as known before any weight is read: DDPM, or flow matching with its convention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the records of flow families alone need it
    from modules.diffusion.flow_convention import FlowConvention

PredictionType = Literal["epsilon", "v_prediction", "flow"]


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """The noise process of a family: its label for sentences, and the prediction types of its models.

    `flow` is the convention of a flow model; None for DDPM.
    """

    label: str
    predictions: tuple[PredictionType, ...]
    flow: FlowConvention | None = None

    @property
    def is_continuous(self) -> bool:
        """Whether timesteps are numbers between 0 and 1000 and not only the whole ones."""
        return self.flow is not None

    def undefined_message(self, what: str) -> str:
        """Return the sentence that refuses something which has no meaning for models of this process."""
        return f"{what} is not defined for {self.label} models."

    def size_shift(self, *, width_px: int, height_px: int, own_px: int) -> float:
        """Return the factor of the dynamic shift for images of a size.

        It is the model's own rule where it has one. Otherwise it is the square root of the pixels over the pixels of a
        square image with the side `own_px` (Esser et al. 2024, eq. 23), which is 1 at the model's own resolution.
        """
        if self.flow is not None and self.flow.shift.depends_on_size:
            return self.flow.shift_at(width_px, height_px)
        return math.sqrt(width_px * height_px / own_px**2)


DDPM = ProcessSpec("DDPM", ("epsilon", "v_prediction"))
