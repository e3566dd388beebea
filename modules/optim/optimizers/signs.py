"""Optimizers that update by the sign of a running average: Lion and Tiger."""

from typing import Literal

from modules.optim import rates
from modules.optim.spec import OptimizerSettings, OptimizerSpec, averages, by_name
from modules.optim.terms import fields
from modules.optim.terms.shared_records import eight_bits_of, pytorch_optimizer_spec


class Lion(OptimizerSettings):
    """Lion (Chen et al. 2023): uses only the momentum's sign, so every weight changes by the full learning rate."""

    name: Literal["lion"] = "lion"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.99
    weight_decay: fields.WeightDecay = 0.0
    fused_back_pass: fields.FusedBackPass = False


class Lion8bit(OptimizerSettings):
    """Lion with 8-bit momentum."""

    name: Literal["lion_8bit"] = "lion_8bit"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    weight_decay: fields.WeightDecay = 0.0
    min_8bit_size: fields.Smallest8Bit = 4096
    fused_back_pass: fields.FusedBackPass = False


class Tiger(OptimizerSettings):
    """Tiger (Su 2023): Lion with a single running average and the least memory of its kind."""

    name: Literal["tiger"] = "tiger"
    beta1: fields.Beta1 = 0.965
    weight_decay: fields.WeightDecay = 0.01
    decoupled_decay: fields.DecoupledDecay = True
    fixed_decay: fields.FixedDecay = False
    fused_back_pass: fields.FusedBackPass = False


LION = OptimizerSpec(
    Lion,
    "Lion",
    "lion_pytorch:Lion",
    is_elementwise=True,
    rates=rates.SIGN,
    state_bytes=averages(1),
    lacks=("use_triton",),
)

LION_8BIT = eight_bits_of(LION, Lion8bit, "Lion8bit", 1, lacks=("percentile_clipping", "block_wise", "is_paged"))

TIGER = pytorch_optimizer_spec(
    Tiger, "TIGER", arguments=by_name({"beta1": "beta"}), rates=rates.SIGN, state_bytes=averages(1)
)
