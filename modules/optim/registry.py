"""The optimizers, one line each, in the order the window lists them. The first is the default. Torch-free.

The record named "adamw" is `SPEC` in `optimizers/adamw.py`; it is imported when it is read first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.settings.lazy_variants import LazyRecords

OPTIMIZERS: Mapping[str, OptimizerSpec[Any]] = LazyRecords(
    "modules.optim.optimizers",
    # The usual ones first: what people train adapters and fine-tunes with.
    "adamw",
    "adamw_8bit",
    "adafactor",
    "prodigy",
    "prodigy_plus_schedule_free",
    "schedule_free_adamw",
    "came",
    "lion",
    "muon",
    "ademamix",
    # The others.
    "adam",
    "adam_8bit",
    "came_8bit",
    "lion_8bit",
    "ademamix_8bit",
    "adabelief",
    "adopt",
    "aida",
    "tiger",
    "yogi",
    "lamb",
    "lamb_8bit",
    "lars",
    "lars_8bit",
    "sgd",
    "sgd_8bit",
    "rmsprop",
    "rmsprop_8bit",
    "adagrad",
    "adagrad_8bit",
    "schedule_free_sgd",
    "dadapt_adam",
    "dadapt_adan",
    "dadapt_ada_grad",
    "dadapt_lion",
    "dadapt_sgd",
    "adamw_adv",
    "adopt_adv",
    "prodigy_adv",
    "lion_adv",
    "signsgd_adv",
    "muon_adv",
    "adamuon_adv",
)
DEFAULT_OPTIMIZER = OPTIMIZERS[next(iter(OPTIMIZERS))]


def memory_saver() -> OptimizerSpec[Any]:
    """Return the optimizer that advice on memory recommends."""
    return next(record for record in OPTIMIZERS.values() if record.saves_memory)


def optimizer_spec(settings: OptimizerSettings) -> OptimizerSpec[Any]:
    """Return the optimizer's record for its settings."""
    return OPTIMIZERS[settings.name]
