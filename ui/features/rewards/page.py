"""The Rewards page: the method with its guide, its settings, and the list of reward models."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence

from modules.config.method_facts import method_of, scorers_of
from modules.config.schema import Config
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer
from ui.features.rewards.method_card import MethodCard
from ui.forms.context import Context
from ui.forms.form_with_list import FormWithList, ListSpec, Row
from ui.forms.setting_pages import PageSpec
from ui.widgets.table import Column


def rewards_page(master: tk.Misc, context: Context, spec: PageSpec) -> FormWithList:
    """Return the page: the guide and the form of the method, and the table of reward models where it needs any."""
    return FormWithList(master, context, spec, _REWARD_MODELS, lead=_lead)


def _lead(master: tk.Misc, context: Context) -> tk.Widget:
    card: tk.Widget = MethodCard(master, context).card
    return card


def needs_of(scorer: Scorer) -> str:
    """Return the files a reward model needs (the user's own, published ones, or none) and its packages."""
    spec = REWARDS[scorer.kind]
    if spec.runs_code:
        return scorer.file or "a file and a function"
    needs = []
    for file in spec.files:
        own = getattr(scorer, file.slot)
        needs.append(own or f"{file.repo} ({file.size_words})")
    needs += [f"the package {package.name}" for package in spec.packages]
    return ", ".join(needs) or "no files"


def _row_of(scorer: Scorer, config: Config) -> Row:
    spec = REWARDS[scorer.kind]
    in_use = scorers_of(config)
    is_held_out = in_use is not None and in_use.held_out is not None and in_use.held_out.kind == scorer.kind
    label = f" {spec.label}{' (held out)' if is_held_out else ''}"
    values = (f"{scorer.weight:g}", spec.scale, needs_of(scorer))
    return label, values, "" if scorer.enabled else "faint"


def _new(_present: Sequence[Scorer], _config: Config) -> Scorer:
    return Scorer(kind=next(name for name, spec in REWARDS.items() if not spec.settings))  # which needs no file


_REWARD_MODELS = ListSpec(
    path="reward.models",
    title="Reward models",
    columns=(
        Column("#0", "Reward model", 220, is_stretched=True),
        Column("weight", "Weight", 70),
        Column("scale", "Scale", 220),
        Column("needs", "Needs", 260, is_stretched=True),
    ),
    add_label="Add reward model",
    add_tip="Add a model that scores generated images",
    item_name="Reward model",
    item_type=Scorer,
    row_of=_row_of,
    new=_new,
    empty_text="No reward models. Add one that scores the images.",
    applies=lambda config: method_of(config).needs_reward_models,
    depends_on="training.method",  # whether a reward model is trained on or held out
)
