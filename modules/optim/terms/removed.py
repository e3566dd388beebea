"""The settings of OneTrainer's optimizers that do not exist here: why, and which of their values change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemovedSetting:
    """A setting that does not exist here.

    Files may contain it: a value of `harmless` is dropped silently, any other with a note that ends in `why`.
    """

    harmless: tuple[bool | int | float | str, ...]
    why: str


_UNSUPPORTED = "bitsandbytes does not support it."
_WITHOUT_ADEMAMIX = "adv-optm no longer has AdEMAMix, to which it belongs."
_YOGI = "pytorch-optimizer no longer has AdaNorm for Yogi."

REMOVED: Mapping[str, RemovedSetting] = {
    "Simplified_AdEMAMix": RemovedSetting((False,), "adv-optm no longer has it."),
    "adam_w_mode": RemovedSetting((True,), "bitsandbytes applies weight decay to the weights, always."),
    "adanorm": RemovedSetting((False,), _YOGI),
    "alpha": RemovedSetting((5, 5.0), _WITHOUT_ADEMAMIX),
    "alpha_grad": RemovedSetting((100, 100.0), "adv-optm no longer has Simplified AdEMAMix, to which it belongs."),
    "amsgrad": RemovedSetting((False,), _UNSUPPORTED),
    "beta3_ema": RemovedSetting((0.9999,), _WITHOUT_ADEMAMIX),
    "bias_correction": RemovedSetting((True,), "bitsandbytes corrects the averages for starting at zero, always."),
    "block_wise": RemovedSetting((True, False), "bitsandbytes quantizes state in blocks, always."),
    "capturable": RemovedSetting((False,), "steps are not recorded in CUDA graphs."),
    "centered": RemovedSetting((False,), _UNSUPPORTED),
    "clip_threshold": RemovedSetting((), "adv-optm no longer has it. Use Clip grad norm."),
    "compile": RemovedSetting((False,), "the update would be compiled again whenever the learning rate changes."),
    "dampening": RemovedSetting((0,), _UNSUPPORTED),
    "differentiable": RemovedSetting((False,), "no gradient flows through an optimizer step."),
    "factored_fp32": RemovedSetting((True,), "the optimizer gets its gradients in float32, always."),
    "fsdp_in_use": RemovedSetting((False,), "the weights are never sharded."),
    "fused_back_pass": RemovedSetting((False,), "the estimate of the learning rate needs all gradients at once."),
    "initial_accumulator_value": RemovedSetting((0,), _UNSUPPORTED),
    "is_paged": RemovedSetting((False,), "the state stays on the training device."),
    "log_every": RemovedSetting((0,), "every step reports the estimated learning rate."),
    "lr_decay": RemovedSetting((0,), "bitsandbytes does not support it. Use a schedule."),
    "max_unorm": RemovedSetting((1, 0.02), "bitsandbytes limits updates only where the state has 32 bits."),
    "momentum": RemovedSetting((0,), _UNSUPPORTED),
    "nesterov": RemovedSetting((False,), _UNSUPPORTED),
    "optim_bits": RemovedSetting((8, "8", 32, "32"), "this optimizer keeps its state in 8 bits, always."),
    "percentile_clipping": RemovedSetting((100,), "bitsandbytes no longer has it. Use Clip grad norm."),
    "r": RemovedSetting((0.95,), _YOGI),
    "use_AdEMAMix": RemovedSetting((False,), "adv-optm no longer has it; AdEMAMix is an optimizer of its own."),
    "use_triton": RemovedSetting((False,), "the update is the same without it."),
}
