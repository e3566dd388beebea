"""Optimizers that update by the sign of a running average: Lion and Tiger."""

from typing import Literal

from modules.optim.spec import SIGN_RATES, OptimizerSettings, OptimizerSpec, averages
from modules.optim.terms import fields, removed
from modules.optim.terms.arguments import by_name
from modules.optim.terms.removed import RemovedSetting
from modules.optim.terms.shared_records import bitsandbytes_spec, pytorch_optimizer_spec
from modules.system.factories import Package


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
    settings=Lion,
    label="Lion",
    factory="lion_pytorch:Lion",
    is_elementwise=True,
    rates=SIGN_RATES,
    state_bytes=averages(1),
    packages=(Package("lion_pytorch"),),
    removed={"use_triton": RemovedSetting((False,), "the update is the same without it.")},
)

LION_8BIT = bitsandbytes_spec(
    Lion8bit,
    "Lion 8-bit",
    "Lion8bit",
    1,
    rates=SIGN_RATES,
    removed=removed.OF_BITSANDBYTES | {"is_paged": removed.PAGED},
)

TIGER = pytorch_optimizer_spec(
    Tiger, "TIGER", arguments=by_name({"beta1": "beta"}), rates=SIGN_RATES, state_bytes=averages(1)
)
