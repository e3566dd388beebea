"""Builds the optimizer from its settings. Its factory is imported here, when a run starts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from modules.optim.param_groups import OptionsOf, TrainGroup, optimizer_groups
from modules.optim.registry import optimizer_spec
from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.optim.updates.memory_order import step_in_order
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory


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
            f"The optimizer {spec.label} needs the package {packages[0].name}, which cannot be loaded ({error}).",
            advice=f"{packages[0].install}, or choose another optimizer.",
        ) from error
