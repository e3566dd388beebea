"""The window that leads from what a user has to a training method: images, pairs, a score, or the user's own eye.

It follows the config: an undo or another config changes which methods fit, their costs and their times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from modules.config.presets import Preset, list_presets, readable_configs
from modules.config.schema import Config
from modules.config.usage import settings_of_method, trains_on_reward
from modules.families.registry import FAMILIES
from modules.objectives.registry import METHODS
from modules.objectives.spec import SOURCES, MethodSource, MethodSpec
from modules.settings.edit import choose_variant, set_path
from modules.system.problem import about, count
from ui.features.rewards.model import COSTS, NEEDS, Guide, guide_of
from ui.forms.context import Context
from ui.loop.background import Job, Report, cancel
from ui.widgets.card import Card
from ui.widgets.controls import Button, ButtonStyle
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.scroll import ScrollFrame
from ui.widgets.theme import GAP, PAD

if TYPE_CHECKING:
    from trainer.preflight.machine import Machine

_SOURCES_WIDTH = 250
_METHOD = "training.method"
_PAGES = {"rewards": "rewards"}  # where the first thing to do is; otherwise the concepts
_QUESTION = "What do you have for the model to learn from?"
_ANSWERS = "A method keeps your other settings. A preset replaces them, but not your concepts and sample prompts."


@dataclass(frozen=True, slots=True)
class Offer:
    """A method for a source: when to choose it, its guide with the config's settings, and why it cannot be used.

    `config` is the config with the method, `presets` are the built-in ones of its family with this method and source.
    """

    spec: MethodSpec
    why: str
    guide: Guide
    refusal: str
    is_usual: bool
    config: Config
    presets: tuple[Preset, ...] = ()


def offers(config: Config, source: MethodSource) -> list[Offer]:
    """Return the methods that learn from a source, the usual one first, those that cannot be used last."""
    process, result = FAMILIES[config.model.family.name].process, []
    presets = _presets_of(config.model.family.name)
    for spec in METHODS.values():
        if (start := spec.sources.get(source)) is not None:
            other = with_method(config, spec, source)
            refusal = spec.refusal(settings_of_method(other), process)
            fitting = tuple(
                p for p, c in presets.items() if (c.training.method.name, source_of(c)) == (spec.name, source)
            )
            guide = guide_of(other)
            guide = replace(guide, needs=start.needs or guide.needs)
            result.append(Offer(spec, start.why, guide, refusal, start.is_usual, other, fitting))
    return sorted(result, key=lambda offer: (bool(offer.refusal), not offer.is_usual))


def _presets_of(family: str) -> dict[Preset, Config]:
    """Return the built-in presets of a family that teach it by other means than denoising, with their configs."""
    of_family = [p for p in list_presets() if p.is_built_in and p.group == family and not p.is_demo]
    usual = Config().training.method.name
    return {p: c for p, c in readable_configs(of_family).items() if c.training.method.name != usual}


def with_method(config: Config, spec: MethodSpec, source: MethodSource) -> Config:
    """Return a config with a method that learns from a source. It keeps the values that it had before."""
    changed, _ = choose_variant(config, _METHOD, spec.name)
    for name, value in spec.sources[source].settings.items():
        changed, _ = set_path(changed, f"{_METHOD}.{name}", value)
    return changed


def source_of(config: Config) -> MethodSource:
    """Return the source from which the method of a config learns."""
    method = config.training.method
    known = METHODS[method.name].sources.items()
    fits = (
        name for name, start in known if all(getattr(method, path) == value for path, value in start.settings.items())
    )
    return next(fits, "images")


def find_times(configs: Mapping[str, Config], report: Report) -> dict[str, str]:
    """Return the time of a step of each config as a sentence, where it is known. For a background thread."""
    from trainer.preflight.machine import this_machine
    from trainer.preflight.presets_here import estimate_run

    machine, times = this_machine(), {}
    for number, (name, config) in enumerate(configs.items()):
        report("estimating", number, len(configs))
        if (needs := estimate_run(config, machine)) is not None:
            times[name] = describe_time(needs.step_seconds, machine, is_scored=trains_on_reward(config))
    return times


def describe_time(seconds: float, machine: Machine, *, is_scored: bool) -> str:
    """Return the time of a step as a sentence; the time of reward models, which some methods have, is not known."""
    here = f"on this computer's processor ({count(machine.num_cores, 'core')})"
    where = here if machine.gpu is None else "on a mid-range card"
    rest = ", without scoring" if is_scored else ""
    return f"Time: about {about(seconds)} per step {where}{rest}, give or take a factor of two."


class WhichMethod(Window):
    """Asks what there is to learn from, and shows the methods for it; choosing one closes the window."""

    is_single = True

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "Which method?")
        self.source = source_of(context.form.config)
        self.buttons: dict[MethodSource, Button] = {}
        self.cards: dict[str, MethodCard] = {}
        """The methods that are shown, by name."""
        self._estimating: Job | None = None
        self._context = context
        self._source_in_use = self.source
        self._shown: list[Offer] = []
        self.at_close(lambda: cancel(self._estimating))
        self.redraw_after(context.pump, self._follow, context.form.changed)
        px = context.theme.px
        Text(self, context.theme, _QUESTION, role="heading").pack(anchor="w", padx=px(PAD), pady=(px(PAD), 0))
        Text(self, context.theme, _ANSWERS, colour="muted").pack(anchor="w", padx=px(PAD), pady=(px(2), px(10)))
        self.add_footer()
        body = Panel(self, context.theme)
        body.pack(fill="both", expand=True, padx=px(PAD))
        left = Panel(body, context.theme)
        left.pack(side="left", fill="y", padx=(0, px(PAD)))
        for name, label in SOURCES.items():
            button = Button(left, context.theme, label, partial(self.show, name), width=_SOURCES_WIDTH, anchor="w")
            button.pack(pady=(0, GAP))
            self.buttons[name] = button
        self._scroll = ScrollFrame(body, context.theme)
        self._scroll.pack(side="left", fill="both", expand=True)
        self._list: Panel | None = None
        self.show(self.source)
        self.appear(960, 680)

    def show(self, source: MethodSource) -> None:
        """Show the methods that learn from a source."""
        self._show(source, offers(self._context.form.config, source))

    def _follow(self) -> None:
        """Show the methods again if the config changes them, those for its source if that is another one."""
        config = self._context.form.config
        in_use = source_of(config)
        source = self.source if in_use == self._source_in_use else in_use
        self._source_in_use = in_use
        offered = offers(config, source)
        if source != self.source or offered != self._shown:
            self._show(source, offered)

    def _show(self, source: MethodSource, shown: list[Offer]) -> None:
        self.source, self._shown = source, shown
        for name, button in self.buttons.items():
            button.restyle("chosen" if name == source else "plain")
        if [card.layout for card in self.cards.values()] == [layout_of(offer) for offer in shown]:
            for card, offer in zip(self.cards.values(), shown, strict=True):
                card.follow(offer)
        else:
            self._draw(shown)
        self._estimate(shown)

    def _draw(self, shown: Sequence[Offer]) -> None:
        if self._list is not None:
            self._list.destroy()
        self._list = Panel(self._scroll.body, self.theme)
        self._list.pack(fill="x")
        self.cards = {offer.spec.name: MethodCard(self._list, self._context, offer, self) for offer in shown}
        for card in self.cards.values():
            card.pack(fill="x", pady=(0, self.theme.px(10)))

    def choose(self, spec: MethodSpec) -> None:
        """Train with a method, and show the page where it needs something next."""
        form = self._context.form
        if form.choose_variant(_METHOD, spec.name) is None:
            for name, value in spec.sources[self.source].settings.items():
                form.edit(f"{_METHOD}.{name}", value)
            self._context.navigation.open(_PAGES.get(self.source, "concepts"))
            self.close()

    def load(self, preset: Preset) -> None:
        """Load a preset with a method, and show the page where it needs something next."""
        self.close()
        self._context.documents.open_preset(preset)
        self._context.navigation.open("concepts")

    def _estimate(self, shown: Sequence[Offer]) -> None:
        """Estimate the time of a step of the methods that are shown, in the background."""
        cancel(self._estimating)
        configs = {offer.spec.name: offer.config for offer in shown if not offer.refusal}
        self._estimating = self._context.pump.background.run_reporting(partial(find_times, configs), self._show_times)

    def _show_times(self, times: Mapping[str, str]) -> None:
        for name, card in self.cards.items():
            if card.time is not None:
                card.time.set_text(times.get(name, "Time: not known for this model."))


class MethodCard(Card):
    """A method: what it does and needs, its time, and the buttons that choose it, which have its name.

    An edit changes the texts alone.
    """

    def __init__(self, master: Panel, context: Context, offer: Offer, window: WhichMethod) -> None:
        super().__init__(master, context.theme)
        self._context = context
        self.layout = layout_of(offer)
        self._summary, self._why = self._add_text(role="strong"), self._add_text(role="body")
        self._lists = [self._add_text(title) if entries else None for title, entries in _lists_of(offer)]
        self.time = None if offer.refusal else self._add_text()
        if self.time is not None:
            self.time.set_text("Time: estimating…")
        self._refusal = self._add_text(role="body", colour="warning") if offer.refusal else None
        is_first = offer.is_usual and not offer.refusal
        style: ButtonStyle = "primary" if is_first else "plain"
        label, px = f"Use {offer.spec.label}", context.theme.px
        self.choice = Button(
            self.body, context.theme, label, partial(window.choose, offer.spec), style=style, on="card"
        )
        self.choice.set_enabled(not offer.refusal)
        self.choice.pack(anchor="w", padx=(px(12), 0), pady=(px(8), px(2)))
        self.presets: dict[str, Button] = {}
        for preset in offer.presets:
            label = f"Load the preset {preset.name}"
            load = Button(self.body, context.theme, label, partial(window.load, preset), on="card")
            load.pack(anchor="w", padx=(px(12), 0), pady=(px(4), px(2)))
            context.tips.attach(load, partial(_notes_of, preset))
            self.presets[preset.name] = load
        self.follow(offer)

    def follow(self, offer: Offer) -> None:
        """Show the texts of the method with the current settings."""
        self._summary.set_text(offer.guide.summary)
        self._why.set_text(offer.why)
        for label, (_, entries) in zip(self._lists, _lists_of(offer), strict=True):
            if label is not None:
                label.set_text("\n".join(entries))
        if self._refusal is not None:
            self._refusal.set_text(offer.refusal)

    def _add_text(self, title: str = "", *, role: str = "small", colour: str = "label") -> WrappedText:
        theme, px = self._context.theme, self._context.theme.px
        if title:
            heading = Text(self.body, theme, title, role="small", colour="accent", on="card")
            heading.pack(anchor="w", padx=(px(12), 0), pady=(px(6), 0))
        text = WrappedText(self.body, theme, colour=colour, on="card", role=role)
        text.pack(fill="x", padx=(px(12), 0))
        return text


def layout_of(offer: Offer) -> tuple[object, ...]:
    """Return what decides the widgets of a method's card; the rest are texts."""
    has_lists = tuple(bool(entries) for _, entries in _lists_of(offer))
    return offer.spec.name, offer.is_usual, bool(offer.refusal), has_lists, offer.presets


def _lists_of(offer: Offer) -> tuple[tuple[str, Sequence[str]], ...]:
    return (NEEDS, offer.guide.needs), (COSTS, offer.guide.costs)


def _notes_of(preset: Preset) -> str:
    return preset.load().config.general.notes
