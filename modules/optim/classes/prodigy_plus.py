"""Prodigy+ schedule-free for a run whose parts may freeze or lack gradients, which the package's class does not fit."""

from __future__ import annotations

import logging
from typing import Any

import torch
from prodigyplus.prodigy_plus_schedulefree import ProdigyPlusScheduleFree as Base

_SUMS = ("running_d_numerator", "running_d_denom")
_LOG = logging.getLogger(__name__)


class ProdigyPlusScheduleFree(Base):  # type: ignore[misc]  # the package is not typed
    """The package's optimizer, with its messages in the log, and its sums independent of the groups' weights.

    The package keeps the sums of a step on the device of a group's first weight, and the sums of all groups in the
    first group: it fails once that group is empty or frozen.
    """

    def log(self, message: str) -> None:
        """Log a message; the package prints it to standard output."""
        _LOG.info(message)

    def step(self, closure: None = None) -> None:
        """Update all weights that have a gradient, and the estimates of the learning rate.

        The sums are on an accelerator if any weight is: they can add numbers of the CPU, where some weights may be
        offloaded, but sums on the CPU cannot add numbers of an accelerator.
        """
        devices = {p.device for group in self.param_groups for p in group["params"]}
        device = min(devices, key=lambda d: d.type == "cpu", default=torch.device("cpu"))
        for group in self.param_groups:
            for key in _SUMS:
                group[key] = group[key].to(device) if key in group else torch.zeros((), device=device)
        super().step(closure)

    def get_running_values_for_group(self, group: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of this step behind the estimate, of shape (), for a group or for all of them."""
        owner = group if group["split_groups"] else self.param_groups[0]
        return owner[_SUMS[0]], owner[_SUMS[1]]
