"""Prodigy+ schedule-free, where the package's own does not fit a run whose parts may freeze or lack gradients."""

from __future__ import annotations

import logging
from typing import Any

import torch
from prodigyplus.prodigy_plus_schedulefree import ProdigyPlusScheduleFree as Base

_LOG = logging.getLogger(__name__)


class ProdigyPlusScheduleFree(Base):  # type: ignore[misc]  # the package is not typed
    """The package's optimizer, with its messages in the log, and its sums independent of the groups' weights.

    The package keeps the sums of a step on the device of a group's first weight, and those of all groups in the first
    group: it fails once that group is empty or frozen.
    """

    def log(self, message: str) -> None:
        """Log a message; the package prints it to standard output."""
        _LOG.info(message)

    def get_running_values_for_group(self, group: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of this step behind the estimate, of shape (), for a group or for all of them."""
        owner = group if group["split_groups"] else self.param_groups[0]
        device = next((p.device for p in group["params"]), None)
        for key in ("running_d_numerator", "running_d_denom"):
            if key not in owner:
                owner[key] = torch.tensor(0.0, device=device)
            elif device is not None and owner[key].device != device:
                owner[key] = owner[key].to(device)
        return owner["running_d_numerator"], owner["running_d_denom"]
