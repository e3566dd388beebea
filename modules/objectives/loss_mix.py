"""The weighted sum of the losses that a run mixes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.diffusion.process_spec import ProcessSpec
from modules.objectives.losses import LOSSES, OTHER_SCHEDULE, LossSettings, MixSettings, MseSettings
from modules.system.errors import DarkroomError

if TYPE_CHECKING:
    import torch

    from modules.diffusion.process import NoiseProcess

# `errors(output_BCHW, target_BCHW)` returns the error of each element, float32 of shape (B, C, H, W).
Errors = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class LossMix:
    """The losses with a strength, by name, in the order of the registry. The default is the squared error."""

    terms: tuple[tuple[str, LossSettings], ...] = (("mse", MseSettings.with_defaults()),)

    def require(self, process: NoiseProcess) -> None:
        """Raise DarkroomError if a setting of a loss is not defined for a process."""
        for sentence in self.refusals(process.spec).values():
            raise DarkroomError(sentence, advice=OTHER_SCHEDULE)

    def refusals(self, process: ProcessSpec) -> dict[str, str]:
        """Return the sentences that refuse settings for models of a process, by loss and field, as in "huber.delta"."""
        refusals = ((name, *settings.refusal(process)) for name, settings in self.terms)
        return {f"{name}.{field}": sentence for name, field, sentence in refusals if sentence}

    def at(self, process: NoiseProcess, timesteps_B: torch.Tensor) -> Errors:
        """Return the function of the errors of predictions at these timesteps: the sum of strength times loss.

        Raises ValueError if all strengths are 0: nothing would be trained.
        """
        if not self.terms:
            raise ValueError("all loss strengths are 0")
        bound = [
            (LOSSES[name].bind(settings, process, timesteps_B), settings.strength) for name, settings in self.terms
        ]

        def errors(output_BCHW: torch.Tensor, target_BCHW: torch.Tensor) -> torch.Tensor:
            differences_BCHW = output_BCHW.float() - target_BCHW.float()
            weighted = []
            for loss, strength in bound:
                losses_BCHW = loss(differences_BCHW)
                weighted.append(losses_BCHW if strength == 1.0 else losses_BCHW * strength)
            total_BCHW = weighted[0]
            for one_BCHW in weighted[1:]:
                total_BCHW = total_BCHW + one_BCHW
            return total_BCHW

        return errors


def loss_mix_of(settings: MixSettings) -> LossMix:
    """Return the losses of a run's settings that have a strength."""
    entries = ((name, getattr(settings, name)) for name in LOSSES)
    return LossMix(tuple((name, loss) for name, loss in entries if loss.strength))
