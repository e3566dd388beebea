"""Settings of OneTrainer's optimizers that do not exist here: why, and which of their values change nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Removed:
    """A setting that does not exist here.

    Files may contain it: a value of `harmless` is dropped silently, any other with a note that ends in `why`.
    """

    harmless: tuple[bool | int | float | str, ...]
    why: str


CAPTURABLE = Removed((False,), "steps are not recorded in CUDA graphs.")
DIFFERENTIABLE = Removed((False,), "no gradient flows through an optimizer step.")
SHARDED = Removed((False,), "the weights are never sharded.")
LOG_EVERY = Removed((0,), "every step reports the estimated learning rate.")
TRITON = Removed((False,), "the update is the same without it.")
ALWAYS_BLOCKS = Removed((True, False), "bitsandbytes quantizes state in blocks, always.")
PERCENTILE_CLIPPING = Removed((100,), "bitsandbytes no longer has it. Use Clip grad norm.")
PAGED = Removed((False,), "the state stays on the training device.")
ALWAYS_8_BITS = Removed((8, "8", 32, "32"), "this optimizer keeps its state in 8 bits, always.")
NO_AMSGRAD = Removed((False,), "bitsandbytes does not support it.")
NO_NESTEROV = Removed((False,), "bitsandbytes does not support it.")
NO_DAMPENING = Removed((0,), "bitsandbytes does not support it.")
NO_RATE_DECAY = Removed((0,), "bitsandbytes does not support it. Use a schedule.")
NO_FIRST_SUM = Removed((0,), "bitsandbytes does not support it.")
NO_CENTERING = Removed((False,), "bitsandbytes does not support it.")
NO_MOMENTUM = Removed((0,), "bitsandbytes does not support it.")
ALWAYS_DECOUPLED = Removed((True,), "bitsandbytes applies weight decay to the weights, always.")
ALWAYS_CORRECTED = Removed((True,), "bitsandbytes corrects the averages for starting at zero, always.")
NO_LIMIT = Removed((1, 0.02), "bitsandbytes limits updates only where the state has 32 bits.")
FULL_GRADIENTS = Removed((True,), "the optimizer gets its gradients in float32, always.")
ALL_AT_ONCE = Removed((False,), "its estimate needs the gradients of all weights.")
