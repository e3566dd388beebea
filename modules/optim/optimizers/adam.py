"""Adam as torch has it, and Adam and AdamW with 8-bit state."""

from typing import Literal

from modules.optim.optimizers.adamw import ADAMW, OF_TORCH, TorchAdam
from modules.optim.spec import OptimizerSpec
from modules.optim.terms import fields
from modules.optim.terms.shared_records import EightBitAdam, eight_bits_of


class Adam(TorchAdam):
    """Adam (Kingma and Ba 2015): weight decay is added to the gradients (L2)."""

    name: Literal["adam"] = "adam"


class AdamW8bit(EightBitAdam):
    """AdamW with 8-bit state (Dettmers et al. 2022)."""

    name: Literal["adamw_8bit"] = "adamw_8bit"
    weight_decay: fields.WeightDecay = 0.01


class Adam8bit(EightBitAdam):
    """Adam with 8-bit state (Dettmers et al. 2022)."""

    name: Literal["adam_8bit"] = "adam_8bit"


ADAM = OptimizerSpec(Adam, "Adam", "torch.optim:Adam", **OF_TORCH)

_NOT_IN_8_BITS = ("optim_bits", "is_paged", "amsgrad", "percentile_clipping", "block_wise")

ADAMW_8BIT = eight_bits_of(ADAMW, AdamW8bit, "AdamW8bit", 2, lacks=_NOT_IN_8_BITS)

ADAM_8BIT = eight_bits_of(ADAM, Adam8bit, "Adam8bit", 2, lacks=_NOT_IN_8_BITS)
