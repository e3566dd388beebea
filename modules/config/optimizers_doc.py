"""The optimizers as a Markdown document: a table of the facts in their records."""

from __future__ import annotations

import math
from typing import Any

from modules.optim.registry import OPTIMIZERS
from modules.optim.spec import OptimizerSettings, OptimizerSpec

_LARGE = (1280, 1280)  # a matrix of the attention of SD and SDXL
_BEGINNING = """# Optimizers

Written by `python -m trainer schema --optimizers` from the records in `modules/optim/optimizers/`;
`tests/training/test_every_optimizer.py` checks the facts.

With every optimizer a run that continues from a backup ends with the same weights, to the bit, as one without
interruption, and 16-bit weights can be trained, with float32 master weights or stochastic rounding
(`training.low_precision_updates`). The table shows the default settings.

- **Package**: who implements the optimizer. Packages with an extra in brackets are installed with it:
  `pip install ".[extra]"`.
- **Fused backward pass**: each weight can be updated inside the backward pass, so that only one gradient exists at a
  time. Optimizers whose step needs all weights at once cannot; with stochastic rounding, all weights exist in float32
  during their step, otherwise a few at a time do.
- **Waits for the device**: how often the program waits for the GPU. Every run does once or twice per step, to read the
  loss. "Per weight": the optimizer's package waits after each weight, or its step reads a norm of each; with a fused
  backward pass, the GPU then idles for a moment after each weight. Settings that
  read a norm or keep the state in 8 bits make others do so, too.
- **State**: bytes for each weight of a large matrix. The weights themselves and their gradients come on top.
- **Evaluation weights**: validation, samples and saved models use other weights than the trained ones (schedule-free).
  EMA would take their place: leave it off.
- **Finds its rate**: it estimates the learning rate; the one that is set scales it.

Optimizers that orthogonalize updates treat the two matrices of a LoRA layer separately, not their product.

"""
_COLUMNS = (
    "Optimizer",
    "Package",
    "Fused backward pass",
    "Waits for the device",
    "State",
    "Evaluation weights",
    "Finds its rate",
)


def optimizers_document() -> str:
    """Return the document, which ends with a line break."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *(_row(spec) for spec in OPTIMIZERS.values())]
    return _BEGINNING + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _row(spec: OptimizerSpec[Any]) -> tuple[str, ...]:
    name = f"{spec.label} (`{spec.name}`)"
    settings = spec.settings()
    return (
        name,
        _packages(spec, settings),
        _yes(spec.can_fuse),
        "per weight" if spec.waits_per_weight(settings) else "per step",
        f"{spec.state_bytes(settings, _LARGE) / math.prod(_LARGE):.2g} B",
        _yes(spec.has_evaluation_mode(settings)),
        _yes(spec.finds_its_rate),
    )


def _packages(spec: OptimizerSpec[Any], settings: OptimizerSettings) -> str:
    packages = [f"{p.distribution or p.name}{f' ({p.extra})' if p.extra else ''}" for p in spec.packages_of(settings)]
    own = [spec.library] if spec.library else []
    return ", ".join(own + packages) or spec.factory.partition(":")[0].partition(".")[0]


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
