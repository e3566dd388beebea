"""CAME (Luo et al. 2023): Adafactor with larger steps where updates are stable."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import DARKROOM, OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.general import Beta1, Beta2, Cautious, Epsilon, Epsilon2, FusedBackPass, WeightDecay
from modules.optim.terms.kin import InstabilityBeta, came_arguments, came_state_bytes


class Came(OptimizerSettings):
    """CAME (Luo et al. 2023): Adafactor with larger steps where updates are stable."""

    name: Literal["came"] = "came"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    beta3: InstabilityBeta = 0.9999
    eps: Epsilon = 1e-30
    eps2: Epsilon2 = 1e-16
    weight_decay: WeightDecay = 0.01
    use_cautious: Cautious = False
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Came) -> dict[str, Any]:
    return {**came_arguments(settings), "use_cautious": settings.use_cautious}


def _state_bytes(settings: Came, shape: Shape) -> float:
    return came_state_bytes(shape)


SPEC = OptimizerSpec(
    settings=Came,
    label="CAME",
    factory="modules.optim.classes.came:Came",
    library=DARKROOM,
    arguments=_arguments,
    state_bytes=_state_bytes,
)
