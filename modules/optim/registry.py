"""The optimizers, one line each, in the order the window lists them. The first is the default.

Each name has the module in `optimizers/` with its record: the record of "adam" is `ADAM` in `adam.py`. A module is
imported when one of its records is read first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.settings.lazy_variants import LazyRecords

OPTIMIZERS: Mapping[str, OptimizerSpec[Any]] = LazyRecords(
    "modules.optim.optimizers",
    {
        # The usual ones first: what people train adapters and fine-tunes with.
        "adamw": "adamw",
        "adamw_8bit": "adam",
        "adafactor": "factored",
        "prodigy": "d_adaptation",
        "prodigy_plus_schedule_free": "schedule_free",
        "schedule_free_adamw": "schedule_free",
        "came": "factored",
        "lion": "signs",
        "muon": "muon",
        "ademamix": "adam_variants",
        # The others.
        "adam": "adam",
        "adam_8bit": "adam",
        "came_8bit": "factored",
        "lion_8bit": "signs",
        "ademamix_8bit": "adam_variants",
        "adabelief": "adam_variants",
        "adopt": "adam_variants",
        "aida": "adam_variants",
        "tiger": "signs",
        "yogi": "adam_variants",
        "lamb": "sums",
        "lamb_8bit": "sums",
        "lars": "sums",
        "lars_8bit": "sums",
        "sgd": "sums",
        "sgd_8bit": "sums",
        "rmsprop": "sums",
        "rmsprop_8bit": "sums",
        "adagrad": "sums",
        "adagrad_8bit": "sums",
        "schedule_free_sgd": "schedule_free",
        "dadapt_adam": "d_adaptation",
        "dadapt_adan": "d_adaptation",
        "dadapt_ada_grad": "d_adaptation",
        "dadapt_lion": "d_adaptation",
        "dadapt_sgd": "d_adaptation",
        "adamw_adv": "advanced",
        "adopt_adv": "advanced",
        "prodigy_adv": "advanced",
        "lion_adv": "advanced",
        "signsgd_adv": "advanced",
        "muon_adv": "muon",
        "adamuon_adv": "muon",
    },
)
DEFAULT_OPTIMIZER = OPTIMIZERS[next(iter(OPTIMIZERS))]


def memory_saver() -> OptimizerSpec[Any]:
    """Return the optimizer that advice on memory recommends."""
    return next(record for record in OPTIMIZERS.values() if record.saves_memory)


def optimizer_spec(settings: OptimizerSettings) -> OptimizerSpec[Any]:
    """Return the optimizer's record for its settings."""
    return OPTIMIZERS[settings.name]
