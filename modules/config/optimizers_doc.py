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

- **Package**: who implements the optimizer. Packages with an extra in brackets are installed with it:
  `pip install ".[extra]"`.
- **Fused backward pass**: each weight can be updated inside the backward pass, so that only one gradient exists at a
  time. Optimizers whose step needs all weights at once cannot.
- **16-bit weights**: float32 master weights or stochastic rounding, by Low-precision weight updates
  (`training.low_precision_updates`), for all optimizers alike. "At once": all weights exist in float32 during a step;
  otherwise a few at a time do.
- **State**: bytes for each weight of a large matrix, with the default settings. The weights themselves and their
  gradients come on top.
- **Resumes to the bit**: a run that continues from a backup ends with the same weights as one without interruption.
- **Evaluation weights**: validation, samples and saved models use other weights than the trained ones (schedule-free).
- **Finds its rate**: it estimates the learning rate; the one that is set scales it.

"""
_COLUMNS = (
    "Optimizer",
    "Package",
    "Fused backward pass",
    "16-bit weights",
    "State",
    "Resumes to the bit",
    "Evaluation weights",
    "Finds its rate",
)


def optimizers_document() -> str:
    """Return the document, which ends with a line break."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *(_row(spec) for spec in OPTIMIZERS.values())]
    return _BEGINNING + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _row(spec: OptimizerSpec[Any]) -> tuple[str, ...]:
    name = f"{spec.label} (`{spec.name}`)"
    if not spec.is_supported:
        return name, "not yet", *[""] * (len(_COLUMNS) - 2)
    settings = spec.settings()
    return (
        name,
        _packages(spec, settings),
        _yes(spec.can_fuse),
        "at once" if spec.steps_at_once else "yes",
        f"{spec.state_bytes(settings, _LARGE) / math.prod(_LARGE):.2g} B",
        "yes",
        _yes(spec.has_evaluation_mode(settings)),
        _yes(spec.finds_its_rate),
    )


def _packages(spec: OptimizerSpec[Any], settings: OptimizerSettings) -> str:
    packages = spec.packages_of(settings)
    if not packages:
        library = spec.factory.partition(":")[0].partition(".")[0]
        return "torch" if library == "modules" else library
    return ", ".join(f"{p.distribution or p.name}{f' ({p.extra})' if p.extra else ''}" for p in packages)


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
