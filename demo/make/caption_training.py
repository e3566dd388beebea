"""The training loop of stage 3: modules are trained together on captioned images, and end with their EMA."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from demo.make.progress import Progress
from demo.make.recipe import CaptionRecipe

_MAX_GRADIENT_NORM = 1.0
_LAST_RATE_SHARE = 0.05


def train_together(
    modules: Sequence[torch.nn.Module],
    recipe: CaptionRecipe,
    *,
    num_captions: int,
    loss_of: Callable[[int], torch.Tensor],
    progress: Progress,
    stage: str,
) -> None:
    """Train modules in place; they end with the EMA of their weights. `stage` names the steps in reports.

    `loss_of(n)` returns the loss of a batch whose captions are among the first n of each image, of `num_captions`.
    Raises DemoModelStopped.
    """
    weights: list[torch.Tensor] = [weight for module in modules for weight in module.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
    averages = [weight.detach().clone() for weight in weights]
    for module in modules:
        module.train()
    for step in range(recipe.num_steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * rate_share(step, recipe)
        loss = loss_of(1 if step < recipe.one_template_num_steps else num_captions)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, _MAX_GRADIENT_NORM)
        optimizer.step()
        decay = min(recipe.ema_decay, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 1.0 - decay)
        progress.step(stage, step + 1, recipe.num_steps, loss.item())
    with torch.no_grad():
        for weight, average in zip(weights, averages, strict=True):
            weight.copy_(average)
    for module in modules:
        module.eval()


def rate_share(step: int, recipe: CaptionRecipe) -> float:
    """Return the factor on the peak learning rate at a step: linear warm-up, plateau, linear decay."""
    warmup = min(1.0, (step + 1) / max(1, recipe.warmup_num_steps))
    num_decay_steps = max(1.0, recipe.decay_share * recipe.num_steps)
    decay = min(1.0, (recipe.num_steps - step) / num_decay_steps)
    return warmup * max(_LAST_RATE_SHARE, decay)
