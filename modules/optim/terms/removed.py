"""The settings of OneTrainer's optimizers that do not exist here: why, and which of their values change nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemovedSetting:
    """A setting that does not exist here.

    Files may contain it: a value of `harmless` is dropped silently, any other with a note that ends in `why`.
    """

    harmless: tuple[bool | int | float | str, ...]
    why: str


CAPTURABLE = RemovedSetting((False,), "steps are not recorded in CUDA graphs.")
DIFFERENTIABLE = RemovedSetting((False,), "no gradient flows through an optimizer step.")
SHARDED = RemovedSetting((False,), "the weights are never sharded.")
LOG_EVERY = RemovedSetting((0,), "every step reports the estimated learning rate.")
TRITON = RemovedSetting((False,), "the update is the same without it.")
PERCENTILE_CLIPPING = RemovedSetting((100,), "bitsandbytes no longer has it. Use Clip grad norm.")
PAGED = RemovedSetting((False,), "the state stays on the training device.")
ALWAYS_8_BITS = RemovedSetting((8, "8", 32, "32"), "this optimizer keeps its state in 8 bits, always.")
NO_RATE_DECAY = RemovedSetting((0,), "bitsandbytes does not support it. Use a schedule.")
ALWAYS_DECOUPLED = RemovedSetting((True,), "bitsandbytes applies weight decay to the weights, always.")
ALWAYS_CORRECTED = RemovedSetting((True,), "bitsandbytes corrects the averages for starting at zero, always.")
NO_LIMIT = RemovedSetting((1, 0.02), "bitsandbytes limits updates only where the state has 32 bits.")
FULL_GRADIENTS = RemovedSetting((True,), "the optimizer gets its gradients in float32, always.")
ALL_AT_ONCE = RemovedSetting((False,), "its estimate needs the gradients of all weights.")

OF_BITSANDBYTES = {
    "percentile_clipping": PERCENTILE_CLIPPING,
    "block_wise": RemovedSetting((True, False), "bitsandbytes quantizes state in blocks, always."),
}


def not_in_bitsandbytes(**unused: bool | int) -> dict[str, RemovedSetting]:
    """Return the records of settings that bitsandbytes lacks; each argument is the value that switches one off."""
    return {name: RemovedSetting((value,), "bitsandbytes does not support it.") for name, value in unused.items()}
