"""What the chosen optimizer needs and keeps, for the window, from the facts that the estimate and preflight read."""

from __future__ import annotations

import math

from modules.config.schema import Config
from modules.optim.registry import optimizer_spec
from modules.settings.shared_types import BarPreview

_LARGE = (1280, 1280)  # a usual weight of a UNet


def optimizer_preview(config: Config, total_steps: int = 0) -> BarPreview:
    """Return a caption without bars: the state, the usual learning rates, and what is missing or special."""
    del total_steps
    settings = config.training.optimizer
    spec = optimizer_spec(settings)
    num_bytes = spec.state_bytes(settings, _LARGE) / math.prod(_LARGE)
    usual = spec.rates.full if config.training.trains == "full" else spec.rates.adapter
    target = "a fine-tune" if config.training.trains == "full" else "an adapter"
    missing = [p.distribution or p.name for p in spec.packages_of(settings) if not p.is_installed]
    needed = [p.distribution or p.name for p in spec.packages_of(settings)]
    facts = [
        f"{spec.label} keeps {num_bytes:.2g} bytes of state per trained weight: {num_bytes * 1e6 / 2**20:.2g} MiB for "
        "each million.",
        f"Usual learning rate for {target}: {usual.usual}.",
        f"Needs the package {', '.join(needed)}{', which is not installed' if missing else ''}." if needed else "",
        "It can update weights during the backward pass (fused), which saves the memory of gradients."
        if spec.can_fuse
        else "",
        "Validation, samples and saved files use its averaged weights." if spec.has_evaluation_mode(settings) else "",
    ]
    return BarPreview((), 1.0, "", "", " ".join(fact for fact in facts if fact))
