"""What a fused backward pass cannot do: each weight is updated at once, and its gradient is freed."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import method_of
from modules.config.schema import Config
from modules.optim.spec import is_fused
from modules.system.problem import Problem

_OFF = "So the weights are updated after the backward pass in this run, and all gradients are kept until then."


def fused_backward_pass(config: Config) -> Iterator[Problem]:
    """Yield a warning for accumulation and loss scaling, which need all gradients at once and switch the fused backward
    pass off (`method_facts.updates_in_backward`); say how clipping works with it.
    """
    training = config.training
    if not is_fused(training.optimizer):
        return
    hindrances = list(_hindrances(config))
    for path, message, advice in hindrances:
        yield Problem(path, f"{message} {_OFF}", "warning", advice)
    if not hindrances and training.clip_grad_norm is not None:
        yield Problem(
            "training.clip_grad_norm",
            "With the fused backward pass, the norm of each weight's gradient is clipped at "
            f"{training.clip_grad_norm:g}, not the norm of all of them together.",
            "info",
        )


def _hindrances(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield the path, the reason and an advice for each setting that needs all gradients at once."""
    training, method = config.training, method_of(config)
    if training.accumulation_steps > 1:
        message = f"A fused backward pass cannot accumulate {training.accumulation_steps} batches."
        yield "training.accumulation_steps", message, "Set the accumulation steps to 1 to save this memory."
    if method.splits_batches:
        message = f"{method.label} accumulates the gradients of many passes, which a fused backward pass cannot do."
        yield "training.optimizer", message, "Switch off the optimizer's fused backward pass."
    if training.precision == "float16":
        message = "float16 scales the loss, which a fused backward pass cannot do."
        yield "training.precision", message, "Choose bfloat16 or float32 to save this memory."
