"""What a fused backward pass cannot do: each weight is updated at once, and its gradient is freed."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import method_of
from modules.config.schema import Config
from modules.optim.spec import is_fused
from modules.system.problem import Problem


def fused_backward_pass(config: Config) -> Iterator[Problem]:
    """Yield an error for accumulation and loss scaling, which need all gradients at once; say how clipping works."""
    training = config.training
    if not is_fused(training.optimizer):
        return
    or_without = "or switch off the optimizer's fused backward pass."
    if training.accumulation_steps > 1:
        yield Problem(
            "training.accumulation_steps",
            "A fused backward pass updates the weights after every batch and cannot accumulate "
            f"{training.accumulation_steps} batches.",
            advice=f"Set the accumulation steps to 1, {or_without}",
        )
    method = method_of(config)
    if method.splits_batches:
        yield Problem(
            "training.optimizer",
            f"{method.label} accumulates the gradients of many passes for each step; a fused backward pass updates the "
            "weights after every one.",
            advice="Switch off the optimizer's fused backward pass.",
        )
    if training.clip_grad_norm is not None:
        yield Problem(
            "training.clip_grad_norm",
            "With the fused backward pass, the norm of each weight's gradient is clipped at "
            f"{training.clip_grad_norm:g}, not the norm of all of them together.",
            "info",
        )
    if training.precision == "float16":
        yield Problem(
            "training.precision",
            "float16 scales the loss, and needs all gradients at once to know whether the scale was right; a fused "
            "backward pass never has them.",
            advice=f"Choose bfloat16 or float32, {or_without}",
        )
