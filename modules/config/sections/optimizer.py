"""The optimizers to choose from, by their names and labels. Each kin has its file under `optimizers/`."""

from __future__ import annotations

from typing import get_args

from modules.config.sections.optimizers.adafactor import Adafactor, Came, Came8bit
from modules.config.sections.optimizers.adam import Adam, AdamW
from modules.config.sections.optimizers.adv import AdamWAdv, AdoptAdv, LionAdv, ProdigyAdv, SignSgdAdv
from modules.config.sections.optimizers.dadaptation import DAdaptAdaGrad, DAdaptAdam, DAdaptAdan, DAdaptLion, DAdaptSgd
from modules.config.sections.optimizers.eight_bit import Adam8bit, AdamW8bit, AdEMAMix, AdEMAMix8bit
from modules.config.sections.optimizers.large_batch import Lamb, Lamb8bit, Lars, Lars8bit
from modules.config.sections.optimizers.more import AdaBelief, Adopt, Aida, Tiger, Yogi
from modules.config.sections.optimizers.muon import AdaMuonAdv, Muon, MuonAdv
from modules.config.sections.optimizers.prodigy import Prodigy, ProdigyPlusScheduleFree
from modules.config.sections.optimizers.schedule_free import ScheduleFreeAdamW, ScheduleFreeSgd
from modules.config.sections.optimizers.sgd import Lion, Lion8bit, Sgd, Sgd8bit
from modules.config.sections.optimizers.squares import Adagrad, Adagrad8bit, RmsProp, RmsProp8bit

# In the order of the list a person chooses from: what is there, then kin by kin.
OptimizerSettings = (
    AdamW
    | Adam
    | Adafactor
    | Sgd
    | RmsProp
    | Adagrad
    | AdamW8bit
    | Adam8bit
    | Prodigy
    | ProdigyPlusScheduleFree
    | Came
    | Came8bit
    | Lion
    | Lion8bit
    | AdEMAMix
    | AdEMAMix8bit
    | ScheduleFreeAdamW
    | ScheduleFreeSgd
    | DAdaptAdam
    | DAdaptAdan
    | DAdaptAdaGrad
    | DAdaptLion
    | DAdaptSgd
    | Muon
    | AdamWAdv
    | AdoptAdv
    | ProdigyAdv
    | LionAdv
    | SignSgdAdv
    | MuonAdv
    | AdaMuonAdv
    | AdaBelief
    | Adopt
    | Aida
    | Tiger
    | Yogi
    | Lamb
    | Lamb8bit
    | Lars
    | Lars8bit
    | Adagrad8bit
    | RmsProp8bit
    | Sgd8bit
)
OPTIMIZER_LABELS = {
    "adamw": "AdamW",
    "adam": "Adam",
    "adafactor": "Adafactor",
    "sgd": "SGD",
    "rmsprop": "RMSprop",
    "adagrad": "AdaGrad",
    "adamw_8bit": "AdamW 8-bit",
    "adam_8bit": "Adam 8-bit",
    "prodigy": "Prodigy",
    "prodigy_plus_schedule_free": "Prodigy+ schedule-free",
    "came": "CAME",
    "came_8bit": "CAME 8-bit",
    "lion": "Lion",
    "lion_8bit": "Lion 8-bit",
    "ademamix": "AdEMAMix",
    "ademamix_8bit": "AdEMAMix 8-bit",
    "schedule_free_adamw": "Schedule-free AdamW",
    "schedule_free_sgd": "Schedule-free SGD",
    "dadapt_adam": "D-Adapt Adam",
    "dadapt_adan": "D-Adapt Adan",
    "dadapt_ada_grad": "D-Adapt AdaGrad",
    "dadapt_lion": "D-Adapt Lion",
    "dadapt_sgd": "D-Adapt SGD",
    "muon": "Muon",
    "adamw_adv": "AdamW (advanced)",
    "adopt_adv": "ADOPT (advanced)",
    "prodigy_adv": "Prodigy (advanced)",
    "lion_adv": "Lion (advanced)",
    "signsgd_adv": "SignSGD (advanced)",
    "muon_adv": "Muon (advanced)",
    "adamuon_adv": "AdaMuon (advanced)",
    "adabelief": "AdaBelief",
    "adopt": "ADOPT",
    "aida": "Aida",
    "tiger": "TIGER",
    "yogi": "Yogi",
    "lamb": "LAMB",
    "lamb_8bit": "LAMB 8-bit",
    "lars": "LARS",
    "lars_8bit": "LARS 8-bit",
    "adagrad_8bit": "AdaGrad 8-bit",
    "rmsprop_8bit": "RMSprop 8-bit",
    "sgd_8bit": "SGD 8-bit",
}
VARIANTS = {str(variant.model_fields["name"].default): variant for variant in get_args(OptimizerSettings)}
NEEDS_BITSANDBYTES = frozenset({"adamw_8bit"})
# Those with a line in modules/optim/registry.py are there.
OPTIMIZERS_NOT_YET = frozenset(VARIANTS) - {"adamw", "adam", "adafactor", "sgd", "rmsprop", "adagrad", "adamw_8bit"}
