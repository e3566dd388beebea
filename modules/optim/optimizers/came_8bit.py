"""CAME with 8-bit state."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import (
    Beta1,
    Beta2,
    Epsilon,
    Epsilon2,
    FusedBackPassNotYet,
    Smallest8Bit,
    WeightDecay,
    advanced,
)
from modules.optim.terms.kin import InstabilityBeta

BlockSize = Annotated[
    int,
    Ge(1),
    Le(1_000_000),
    advanced("Block size", "How many values of the 8-bit state share a scale.", unit="weights"),
]


class Came8bit(OptimizerSettings):
    """CAME with 8-bit state."""

    name: Literal["came_8bit"] = "came_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    beta3: InstabilityBeta = 0.9999
    eps: Epsilon = 1e-30
    eps2: Epsilon2 = 1e-16
    weight_decay: WeightDecay = 0.01
    fused_back_pass: FusedBackPassNotYet = False
    min_8bit_size: Smallest8Bit = 16384
    quant_block_size: BlockSize = 2048


SPEC = OptimizerSpec(
    settings=Came8bit,
    label="CAME 8-bit",
)
