"""Lion (Chen et al. 2023): uses only the momentum's sign, so every weight changes by the full learning rate."""

from __future__ import annotations

from typing import Annotated, Literal

from modules.optim.spec import SIGN_RATES, OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import Beta1, Beta2, WeightDecay, advanced


class Lion(OptimizerSettings):
    """Lion (Chen et al. 2023): uses only the momentum's sign, so every weight changes by the full learning rate."""

    name: Literal["lion"] = "lion"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    weight_decay: WeightDecay = 0.0
    use_triton: Annotated[bool, advanced("Triton kernel", "Runs the update in a Triton kernel on the GPU: faster.")] = (
        False
    )


SPEC = OptimizerSpec(
    settings=Lion,
    label="Lion",
    rates=SIGN_RATES,
    state_bytes=per_weight(4.0),
)
