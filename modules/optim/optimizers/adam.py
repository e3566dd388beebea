"""Adam and AdamW as torch has them (AdamW is the window's default), and with 8-bit state."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from modules.optim.spec import OptimizerSpec, by_name
from modules.optim.terms import fields
from modules.optim.terms.shared_records import AdamFields, EightBitAdam, eight_bits_of
from modules.settings.field import When, advanced_setting


class _TorchAdam(AdamFields):
    amsgrad: fields.AmsGrad = False
    foreach: Annotated[bool, replace(fields.FOREACH, applies_when=When("fused", (False,)))] = False
    maximize: fields.Maximize = False
    fused: Annotated[
        bool, advanced_setting("Fused", "Runs the whole update in one kernel: the fastest, with the least memory.")
    ] = True
    fused_back_pass: fields.FusedBackPass = False


class AdamW(_TorchAdam):
    """AdamW (Loshchilov and Hutter 2019): the usual choice."""

    name: Literal["adamw"] = "adamw"
    weight_decay: fields.WeightDecay = 0.01


class Adam(_TorchAdam):
    """Adam (Kingma and Ba 2015): weight decay is added to the gradients (L2)."""

    name: Literal["adam"] = "adam"


class AdamW8bit(EightBitAdam):
    """AdamW with 8-bit state (Dettmers et al. 2022)."""

    name: Literal["adamw_8bit"] = "adamw_8bit"
    weight_decay: fields.WeightDecay = 0.01


class Adam8bit(EightBitAdam):
    """Adam with 8-bit state (Dettmers et al. 2022)."""

    name: Literal["adam_8bit"] = "adam_8bit"


_OF_TORCH: dict[str, Any] = {
    "is_elementwise": True,
    "arguments": by_name(more=lambda s: {"foreach": s.foreach and not s.fused}),
    "skips_on_device": lambda s: s.fused,
    "lacks": ("capturable", "differentiable"),
}

ADAMW = OptimizerSpec(AdamW, "AdamW", "torch.optim:AdamW", **_OF_TORCH)

ADAM = OptimizerSpec(Adam, "Adam", "torch.optim:Adam", **_OF_TORCH)

_NOT_IN_8_BITS = ("optim_bits", "is_paged", "amsgrad", "percentile_clipping", "block_wise")

ADAMW_8BIT = eight_bits_of(ADAMW, AdamW8bit, "AdamW8bit", 2, lacks=_NOT_IN_8_BITS)

ADAM_8BIT = eight_bits_of(ADAM, Adam8bit, "Adam8bit", 2, lacks=_NOT_IN_8_BITS)
