"""The Rewards page: the method with its guide, its settings, and the list of reward models."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterable, Sequence
from functools import partial

from modules.config.records import why_unused
from modules.config.schema import Config
from modules.config.usage import method_of, scorers_of
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer
from ui.features.rewards.model import COSTS, NEEDS, WATCH, Guide, guide_of
from ui.forms.binding import choose_from_list
from ui.forms.context import Context
from ui.forms.form_with_list import FormWithList, ListSpec, Row
from ui.forms.setting_pages import PageSpec
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.table import Column
from ui.widgets.theme import GAP, PAD


def rewards_page(master: tk.Misc, context: Context, spec: PageSpec) -> FormWithList:
    """Return the page: the guide and the form of the method, and the reward models if the method needs any."""
    return FormWithList(master, context, spec, _REWARD_MODELS, lead=_lead)


def _lead(master: tk.Misc, context: Context) -> tk.Widget:
    card: tk.Widget = MethodCard(master, context).card
    return card


def needs_of(scorer: Scorer) -> str:
    """Return the files a reward model needs (the user's own, published ones, or none) and its packages."""
    spec = REWARDS[scorer.kind]
    if spec.runs_code:
        return scorer.file or "a file and a function"
    if spec.client:
        return scorer.address or "a server's address"
    needs = []
    for file in spec.files:
        user_file = getattr(scorer, file.slot)
        needs.append(user_file or (f"{file.repo} ({file.size_text})" if file.repo else "a folder of weights"))
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
    depends_on=("training.method",),  # whether a reward model is trained on or held out
)


_WEIGHTS = (4, 4, 5)
_METHOD = "training.method"


class MethodCard:
    """Follows the method and its settings."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        self.card = Card(master, context.theme, "Method")
        self.guide: Guide | None = None
        self._context = context
        px = context.theme.px
        self.summary = WrappedText(self.card.body, context.theme, colour="label", on="card")
        self.summary.pack(fill="x", padx=(px(12), 0))
        self.columns = Panel(self.card.body, context.theme, "card")
        for column, weight in enumerate(_WEIGHTS):
            self.columns.columnconfigure(column, weight=weight, uniform="guide")
        self.buttons = Panel(self.card.body, context.theme, "card")
        for label, press in (("Which method?", self._ask), ("Another method…", self._choose_other)):
            Button(self.buttons, context.theme, label, press, on="card").pack(side="left", padx=(0, GAP))
        context.form.changed.subscribe(lambda: context.pump.redraw_soon(self, self.refresh))
        self.refresh()

    def refresh(self) -> None:
        """Show the guide of the current method and settings."""
        guide = guide_of(self._context.form.config)
        if guide == self.guide:
            return
        self.guide = guide
        self.card.heading.set_text(guide.title)
        self.summary.set_text(guide.summary)
        for child in self.columns.winfo_children():
            child.destroy()
        lists = [(t, e) for t, e in ((NEEDS, guide.needs), (COSTS, guide.costs), (WATCH, guide.watch)) if e]
        for number, (title, entries) in enumerate(lists):
            self._add_column(number, title, entries)
        px = self._context.theme.px
        if lists:
            self.columns.pack(fill="x", padx=(px(12), 0), pady=(px(10), px(2)))
        else:
            self.columns.pack_forget()
        if why_unused(self._context.form.config, _METHOD):
            self.buttons.pack_forget()  # a VAE has its own method and no other
        else:
            tk.Pack.pack_configure(self.buttons, anchor="w", padx=(px(12), 0), pady=(px(10), px(2)))

    def _ask(self) -> None:
        self._context.actions.run("which_method")

    def _choose_other(self) -> None:
        """Choose another method, as in the top bar."""
        record = self._context.form.record(_METHOD)
        assert record is not None
        choose_from_list(self._context, record, partial(self._context.form.choose_variant, _METHOD))

    def _add_column(self, number: int, title: str, entries: Iterable[str]) -> None:
        context, px = self._context, self._context.theme.px
        column = Panel(self.columns, context.theme, "card")
        column.grid(row=0, column=number, sticky="new", padx=(px(PAD * 1.5) if number else 0, 0))
        heading = WrappedText(column, context.theme, title, role="small", colour="accent", on="card")
        heading.pack(fill="x", pady=(0, px(2)))
        for text in entries:
            paragraph = WrappedText(column, context.theme, text, colour="label", on="card", role="small")
            paragraph.pack(fill="x", pady=(px(3), 0))
