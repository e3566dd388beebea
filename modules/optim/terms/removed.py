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


DIFFERENTIABLE = RemovedSetting((False,), "no gradient flows through an optimizer step.")
SHARDED = RemovedSetting((False,), "the weights are never sharded.")
PERCENTILE_CLIPPING = RemovedSetting((100,), "bitsandbytes no longer has it. Use Clip grad norm.")
PAGED = RemovedSetting((False,), "the state stays on the training device.")
ALWAYS_8_BITS = RemovedSetting((8, "8", 32, "32"), "this optimizer keeps its state in 8 bits, always.")

OF_BITSANDBYTES = {
    "percentile_clipping": PERCENTILE_CLIPPING,
    "block_wise": RemovedSetting((True, False), "bitsandbytes quantizes state in blocks, always."),
}


def not_in_bitsandbytes(**unused: bool | int) -> dict[str, RemovedSetting]:
    """Return the records of settings that bitsandbytes lacks; each argument is the value that switches one off."""
    return {name: RemovedSetting((value,), "bitsandbytes does not support it.") for name, value in unused.items()}
