"""Builds the optimizer from its settings. Its factory is imported here, when a run starts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from modules.optim.param_groups import OptionsOf, TrainGroup, in_layout_of, optimizer_groups
from modules.optim.registry import optimizer_spec
from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.file_errors import plain_reason


def step_in_order(optimizer: torch.optim.Optimizer) -> None:
    """Make weights and gradients contiguous during each step of an optimizer; weights get their layout back after it.

    For steps that pair a weight with its gradient and its state by their places in memory: bitsandbytes' kernels, and
    the factored state of adv-optm. A convolution's weight may have its channels innermost; its state would then belong
    to other weights, or the step would fail. No second copy of a weight stays.
    """
    layouts: list[tuple[nn.Parameter, torch.Tensor]] = []

    def before(*_: Any) -> None:
        layouts.clear()
        for parameter in (p for g in optimizer.param_groups for p in g["params"] if p.grad is not None):
            if not parameter.is_contiguous():
                layouts.append((parameter, torch.empty_like(parameter, device="meta")))
                parameter.data = parameter.data.contiguous()
            parameter.grad = parameter.grad.contiguous()

    def after(*_: Any) -> None:
        for parameter, layout in layouts:
            parameter.data = in_layout_of(layout, parameter.data)
        layouts.clear()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def build_optimizer(groups: Iterable[TrainGroup], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Return the optimizer that the settings describe, over the weights of training units.

    Their master weights must exist already. Adds the facts that the step needs to each group: "steps_at_once",
    "group_state", "skips_on_device", "waits_per_weight" and "reads_memory_in_order" (see `OptimizerSpec`). Raises
    DarkroomError if a package of the optimizer cannot be loaded.
    """
    spec = optimizer_spec(settings)
    # Some constructors print; standard output is reserved for events.
    with contextlib.redirect_stdout(sys.stderr), _naming_packages(spec, settings):
        factory: Callable[..., torch.optim.Optimizer] = load_factory(spec.factory)
        optimizer = factory(_groups(groups, spec, settings), **spec.arguments(settings))
    for group in optimizer.param_groups:
        group["steps_at_once"] = spec.steps_at_once
        group["group_state"] = spec.group_state
        group["skips_on_device"] = spec.skips_on_device(settings)
        group["waits_per_weight"] = spec.waits_per_weight(settings)
        group["reads_memory_in_order"] = spec.reads_memory_in_order(settings)
    if spec.reads_memory_in_order(settings):
        step_in_order(optimizer)
    if spec.has_evaluation_mode(settings):
        optimizer.train()  # type: ignore[attr-defined]  # some start in evaluation mode
    return optimizer


def _groups(
    groups: Iterable[TrainGroup], spec: OptimizerSpec[Any], settings: OptimizerSettings
) -> list[dict[str, Any]]:
    if not spec.options_of:
        return optimizer_groups(groups)
    options_of: Callable[[OptimizerSettings], OptionsOf] = load_factory(spec.options_of)
    return optimizer_groups(groups, options_of(settings))


@contextlib.contextmanager
def _naming_packages(spec: OptimizerSpec[Any], settings: OptimizerSettings) -> Iterator[None]:
    """Raise DarkroomError for a package of the optimizer that cannot be imported."""
    try:
        yield
    except ImportError as error:
        packages = spec.packages_of(settings)
        if not packages:
            raise
        raise DarkroomError(
            f"The optimizer {spec.label} needs the package {packages[0].name}, which cannot be loaded "
            f"({plain_reason(error)}).",
            advice=f"{packages[0].install}, or choose another optimizer.",
            remedy="packages",
        ) from error
