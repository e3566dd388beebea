"""AdamW as torch has it: the default, which the window imports at its start. Adam and 8-bit state are in `adam`."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from modules.optim.spec import OptimizerSpec, by_name
from modules.optim.terms import fields
from modules.settings.field import When, advanced_setting


class TorchAdam(fields.AdamFields):
    """The settings of torch's Adam and AdamW."""

    amsgrad: fields.AmsGrad = False
    foreach: Annotated[bool, replace(fields.FOREACH, applies_when=When("fused", (False,)))] = False
    maximize: fields.Maximize = False
    fused: Annotated[
        bool, advanced_setting("Fused", "Runs the whole update in one kernel: the fastest, with the least memory.")
    ] = True
    fused_back_pass: fields.FusedBackPass = False


class AdamW(TorchAdam):
    """AdamW (Loshchilov and Hutter 2019): the usual choice."""

    name: Literal["adamw"] = "adamw"
    weight_decay: fields.WeightDecay = 0.01


OF_TORCH: dict[str, Any] = {
    "is_elementwise": True,
    "arguments": by_name(more=lambda s: {"foreach": s.foreach and not s.fused}),
    "skips_on_device": lambda s: s.fused,
    "lacks": ("capturable", "differentiable"),
}
"""The facts about torch's Adam and AdamW."""

ADAMW = OptimizerSpec(AdamW, "AdamW", "torch.optim:AdamW", **OF_TORCH)
