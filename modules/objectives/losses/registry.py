"""The elementwise losses, one line each. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping

from modules.objectives.losses import absolute, huber, log_cosh, smooth_l1, squared
from modules.objectives.losses.spec import LossSpec

LOSSES: Mapping[str, LossSpec] = {
    spec.name: spec
    for spec in (
        squared.SPEC,
        absolute.SPEC,
        log_cosh.SPEC,
        huber.SPEC,
        smooth_l1.SPEC,
    )
}
