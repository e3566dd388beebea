"""The convention of a flow family: its signs, what it reads as its time, and the shift of its noise levels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, Literal, Protocol

from modules.diffusion.process_spec import ProcessSpec
from modules.system.errors import DarkroomError

Sign = Literal[1, -1]
TimeInput = Literal["sigma", "1 - sigma", "1000 sigma"]


class Shift(Protocol):
    """The shift s of a flow model's noise levels: `sigma' = s sigma / (1 + (s - 1) sigma)` (Esser et al. 2024, eq. 23).

    Above 1 it moves them to more noise, as large images need.
    """

    @property
    def depends_on_size(self) -> bool:
        """Whether s is different for images of another size."""
        ...

    def factor(self, num_tokens: int) -> float:
        """Return s for an image of that many latent tokens."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantShift:
    """The same shift for images of every size (SD 3, Z-Image and Anima: 3)."""

    value: float = 1.0

    @property
    def depends_on_size(self) -> bool:
        """Return False."""
        return False

    def factor(self, num_tokens: int) -> float:
        """Return s."""
        return self.value


@dataclass(frozen=True, slots=True)
class TokenShift:
    """A shift that grows with an image's tokens, as `calculate_shift` of diffusers' pipelines has it.

    mu is linear in the tokens, from `base_shift` at `base_tokens` to `max_shift` at `max_tokens`, and continues beyond
    them. s is `exp(mu)`, or mu itself for the kind "linear" (`time_shift_type`). The defaults are FLUX.1's.
    """

    base_tokens: int = 256
    max_tokens: int = 4096
    base_shift: float = 0.5
    max_shift: float = 1.15
    kind: Literal["exponential", "linear"] = "exponential"

    @property
    def depends_on_size(self) -> bool:
        """Return True."""
        return True

    def mu(self, num_tokens: int) -> float:
        """Return mu for an image of that many latent tokens."""
        slope = (self.max_shift - self.base_shift) / (self.max_tokens - self.base_tokens)
        return num_tokens * slope + (self.base_shift - slope * self.base_tokens)

    def factor(self, num_tokens: int) -> float:
        """Return s for an image of that many latent tokens."""
        mu = self.mu(num_tokens)
        return math.exp(mu) if self.kind == "exponential" else mu


@dataclass(frozen=True, slots=True)
class RootShift:
    """A shift that grows with the side of an image: the square root of its tokens over `base_tokens` (Ideogram 4).

    It moves the logarithm of the odds by half the logarithm of the tokens' ratio (`_resolution_aware_mu` of diffusers).
    """

    base_tokens: int

    @property
    def depends_on_size(self) -> bool:
        """Return True."""
        return True

    def factor(self, num_tokens: int) -> float:
        """Return s for an image of that many latent tokens."""
        return math.sqrt(num_tokens / self.base_tokens)


@dataclass(frozen=True, slots=True)
class LogitNormalGrid:
    """The noise levels of a sample at equal steps of a logit-normal distribution with a standard deviation.

    Shifted, the logarithms of their odds are limited to `lowest` and `highest` (`_logit_normal_sigmas` of diffusers).
    """

    deviation: float
    lowest: float
    highest: float

    def levels(self, num_steps: int, shift: float) -> list[float]:
        """Return the levels from most noise to least, before they are shifted by s; the 0 behind them is left out."""
        normal, moved = NormalDist(), math.log(shift)
        drawn = [math.inf, *(normal.inv_cdf(1.0 - step / num_steps) for step in range(1, num_steps))]
        limited = [min(max(moved + self.deviation * z, self.lowest), self.highest) for z in drawn]
        return [1.0 / (1.0 + math.exp(moved - odds)) for odds in limited]


@dataclass(frozen=True, slots=True)
class StepsShift:
    """The shift `exp(mu)` of samples that depends on the number of steps, too (`compute_empirical_mu` of diffusers).

    mu was fitted to good samples: it is linear in the tokens at 10 and at 200 steps, linear in the steps between these
    two lines and beyond, and above 4,300 tokens as with 200 steps.
    """

    def factor(self, num_tokens: int, num_steps: int) -> float:
        """Return s for an image of that many latent tokens, sampled in that many steps."""
        at_200 = 0.00016927 * num_tokens + 0.45666666
        if num_tokens > 4300:
            return math.exp(at_200)
        at_10 = 8.73809524e-05 * num_tokens + 1.89833333
        slope = (at_200 - at_10) / 190.0
        return math.exp(slope * num_steps + (at_200 - 200.0 * slope))


@dataclass(frozen=True, slots=True)
class FlowConvention:
    """How the models of a flow family differ in what they compute; the rest of the program sees none of it.

    The program's own convention is `x_t = (1 - sigma) x_0 + sigma eps` with the velocity `v = eps - x_0` and the
    timestep `t = 1000 sigma`, as in diffusers' schedulers.

    - `target_sign`: -1 for a model that was trained on `x_0 - eps` (Ideogram 4, Lumina 2).
    - `output_sign`: -1 for a model whose pipeline negates its output (Z-Image, HiDream I1).
    - `time_input`: what the model reads as its time.
    - `shift`: the published model's; the scheduler config of a checkpoint overrides it (`with_scheduler`).
    - `sample_shift`: the shift of samples, if it differs from the shift in training (FLUX.2).
    - `token_px`: the side in pixels of the square that one token covers: 16 for latents of factor 8 in patches of 2, so
      that an image of 1024 px has 4,096 tokens. Counted in pixels, latents that are patched already count only once.
    - `sample_grid`: the noise levels of a sample before the shift. "even" is `linspace(1, 1 / N, N)`, as most pipelines
      have it; "scheduler" is the default of diffusers' scheduler, which ends at its smallest sigma (SD 3, Sana).
      Ideogram 4's has equal steps of a logit-normal distribution.
    """

    target_sign: Sign = 1
    output_sign: Sign = 1
    time_input: TimeInput = "sigma"
    shift: Shift = field(default_factory=ConstantShift)
    sample_shift: StepsShift | None = None
    token_px: int = 16
    sample_grid: Literal["even", "scheduler"] | LogitNormalGrid = "even"

    def shift_at(self, width_px: int, height_px: int) -> float:
        """Return the shift of an image of this size."""
        return self.shift.factor(self._tokens(width_px, height_px))

    def sample_shift_at(self, width_px: int, height_px: int, num_steps: int) -> float:
        """Return the shift of an image of this size that is sampled in that many steps."""
        if self.sample_shift is None:
            return self.shift_at(width_px, height_px)
        return self.sample_shift.factor(self._tokens(width_px, height_px), num_steps)

    def _tokens(self, width_px: int, height_px: int) -> int:
        return (width_px // self.token_px) * (height_px // self.token_px)

    def with_scheduler(self, scheduler: Mapping[str, Any]) -> FlowConvention:
        """Return the convention with the shift of a checkpoint's scheduler config.

        Missing keys keep the published model's shift, and so does one by the side of images, which is the pipeline's
        own. Raises DarkroomError for a config that cannot be used.
        """
        if scheduler.get("invert_sigmas"):
            raise DarkroomError("invert_sigmas in the model's scheduler config is not supported.")
        if isinstance(self.shift, RootShift):
            return self
        if not scheduler.get("use_dynamic_shifting"):
            given = scheduler.get("shift", scheduler.get("flow_shift"))  # the multistep schedulers' name
            return self if given is None else replace(self, shift=ConstantShift(float(given)), sample_shift=None)
        published = self.shift if isinstance(self.shift, TokenShift) else TokenShift()
        shift = TokenShift(
            int(scheduler.get("base_image_seq_len", published.base_tokens)),
            int(scheduler.get("max_image_seq_len", published.max_tokens)),
            float(scheduler.get("base_shift", published.base_shift)),
            float(scheduler.get("max_shift", published.max_shift)),
            scheduler.get("time_shift_type", published.kind),
        )
        if shift.base_tokens == shift.max_tokens or shift.kind not in ("exponential", "linear"):
            raise DarkroomError(
                "The dynamic shift in the model's scheduler config cannot be used.",
                advice="base_image_seq_len and max_image_seq_len must differ, and time_shift_type must be exponential "
                "or linear.",
            )
        return replace(self, shift=shift)


def flow_matching(convention: FlowConvention | None = None) -> ProcessSpec:
    """Return the process of a flow family with its convention."""
    return ProcessSpec("flow matching", ("flow",), convention or FlowConvention())
