"""What a fused backward pass cannot do: each weight moves by its gradient alone, at once, and the gradient is gone."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.optim.spec import is_fused
from modules.system.problem import Problem


def fused_back_pass(config: Config) -> Iterator[Problem]:
    """No accumulation, no clipping by the norm of all gradients, no scaled loss: each needs all gradients together."""
    training = config.training
    if not is_fused(training.optimizer):
        return
    or_without = "or switch the optimizer's fused backward pass off."
    if training.accumulation_steps > 1:
        yield Problem(
            "training.accumulation_steps",
            "A fused backward pass moves the weights after every batch, and so cannot add up "
            f"{training.accumulation_steps} of them.",
            advice=f"Set the accumulation to 1, {or_without}",
        )
    if training.clip_grad_norm is not None:
        yield Problem(
            "training.clip_grad_norm",
            f"A fused backward pass never has all gradients together, and so cannot clip them at "
            f"{training.clip_grad_norm:g}.",
            advice=f"Leave this field empty, {or_without}",
        )
    if training.precision == "float16":
        yield Problem(
            "training.precision",
            "float16 scales the loss, and whether the scale was right is known only once all gradients are there; with "
            "a fused backward pass they never are.",
            advice=f"Choose bfloat16 or float32, {or_without}",
        )
