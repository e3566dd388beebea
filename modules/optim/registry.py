"""The optimizers, one line each, in the order the window lists them. The first is the default. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.optim.optimizers import (
    adabelief,
    adafactor,
    adagrad,
    adagrad_8bit,
    adam,
    adam_8bit,
    adamuon_adv,
    adamw,
    adamw_8bit,
    adamw_adv,
    ademamix,
    ademamix_8bit,
    adopt,
    adopt_adv,
    aida,
    came,
    came_8bit,
    dadapt_ada_grad,
    dadapt_adam,
    dadapt_adan,
    dadapt_lion,
    dadapt_sgd,
    lamb,
    lamb_8bit,
    lars,
    lars_8bit,
    lion,
    lion_8bit,
    lion_adv,
    muon,
    muon_adv,
    prodigy,
    prodigy_adv,
    prodigy_plus_schedule_free,
    rmsprop,
    rmsprop_8bit,
    schedule_free_adamw,
    schedule_free_sgd,
    sgd,
    sgd_8bit,
    signsgd_adv,
    tiger,
    yogi,
)
from modules.optim.spec import OptimizerSettings, OptimizerSpec

# The usual ones first: what people train adapters and fine-tunes with.
_USUAL: tuple[OptimizerSpec[Any], ...] = (
    adamw.SPEC,
    adamw_8bit.SPEC,
    adafactor.SPEC,
    prodigy.SPEC,
    prodigy_plus_schedule_free.SPEC,
    schedule_free_adamw.SPEC,
    came.SPEC,
    lion.SPEC,
    muon.SPEC,
    ademamix.SPEC,
)
_OTHERS: tuple[OptimizerSpec[Any], ...] = (
    adam.SPEC,
    adam_8bit.SPEC,
    came_8bit.SPEC,
    lion_8bit.SPEC,
    ademamix_8bit.SPEC,
    adabelief.SPEC,
    adopt.SPEC,
    aida.SPEC,
    tiger.SPEC,
    yogi.SPEC,
    lamb.SPEC,
    lamb_8bit.SPEC,
    lars.SPEC,
    lars_8bit.SPEC,
    sgd.SPEC,
    sgd_8bit.SPEC,
    rmsprop.SPEC,
    rmsprop_8bit.SPEC,
    adagrad.SPEC,
    adagrad_8bit.SPEC,
    schedule_free_sgd.SPEC,
    dadapt_adam.SPEC,
    dadapt_adan.SPEC,
    dadapt_ada_grad.SPEC,
    dadapt_lion.SPEC,
    dadapt_sgd.SPEC,
    adamw_adv.SPEC,
    adopt_adv.SPEC,
    prodigy_adv.SPEC,
    lion_adv.SPEC,
    signsgd_adv.SPEC,
    muon_adv.SPEC,
    adamuon_adv.SPEC,
)
_RECORDS = (*_USUAL, *_OTHERS)
OPTIMIZERS: Mapping[str, OptimizerSpec[Any]] = {record.name: record for record in _RECORDS}
DEFAULT_OPTIMIZER = _RECORDS[0]
MEMORY_SAVER = next(record for record in _RECORDS if record.saves_memory)
"""The optimizer that advice on memory recommends."""


def optimizer_spec(settings: OptimizerSettings) -> OptimizerSpec[Any]:
    """Return the optimizer's record for its settings."""
    return OPTIMIZERS[settings.name]
