"""Adafactor of transformers, which also notes the learning rate that it chooses itself, for reports."""

from __future__ import annotations

import math
from typing import Any

from transformers.optimization import Adafactor


class RelativeAdafactor(Adafactor):  # type: ignore[misc]  # transformers has no types
    """Adafactor (Shazeer and Stern 2018). With `relative_step`, "chosen_rate" in a group is its current step size."""

    @staticmethod
    def _get_lr(param_group: dict[str, Any], param_state: dict[str, Any]) -> Any:
        """Return the learning rate of a weight: section 8 of the paper where it is relative, else that of the group."""
        if param_group["relative_step"]:
            step = param_state["step"]
            highest = 1e-6 * step if param_group["warmup_init"] else 1e-2
            param_group["chosen_rate"] = min(highest, 1.0 / math.sqrt(step))  # before the scale of the weight
        return Adafactor._get_lr(param_group, param_state)
