"""The Run page: the loss, the method's curves, the newest samples and rollout, the run's facts and the log."""

from __future__ import annotations

import math
import tkinter as tk
from collections.abc import Mapping
from pathlib import Path

from modules.data.amount import data_words
from modules.families.registry import FAMILIES
from modules.system.problem import count
from trainer.events import SampleReady
from trainer.rollout_events import Mark, RolloutSampled, SampledImage
from ui.context import Context
from ui.documents import as_config_path
from ui.editors.images import ImageViewer
from ui.pages.catalogue import PageSpec
from ui.pages.page import PageFrame
from ui.run.metric_curves import has_method_metrics, short_number
from ui.run.rollout_words import image_words, rollout_line
from ui.run.run_state import RunState
from ui.run.words import preview_lines, rate, reward_line, validation_line
from ui.theme import PAD
from ui.widgets.card import Card
from ui.widgets.chart import LossChart
from ui.widgets.image_grid import ImageGrid, Tile
from ui.widgets.log import LogView
from ui.widgets.metric_grid import MetricGrid
from ui.widgets.panel import Panel, Text
from ui.widgets.reward_chart import RewardChart
from ui.widgets.tabs import TabbedCard

_CHART_SECONDS = 0.25
_LOSS, _METRICS, _SAMPLES, _ROLLOUT = "Loss", "Metrics", "Samples", "Rollout"
_ROLLOUT_PX = 84
_REWARD_HEIGHT = 150  # of its card; lower, its scales are unreadable
_RINGS: Mapping[Mark, str] = {"": "", "best": "good", "worst": "error"}
_NO_SAMPLES = "Samples appear here. Set prompts and intervals on the Sampling page."


class RunPage:
    """Shows the session; before the first run it shows the preview."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self._context = context
        self._is_shown = False
        self._drawn = RunState()
        px = context.theme.px
        body = Panel(self.frame, context.theme)
        body.grid(row=1, column=0, sticky="nsew", padx=px(PAD + 4), pady=(0, px(PAD)))
        body.columnconfigure(0, weight=3, uniform="run")
        body.columnconfigure(1, weight=2, uniform="run")
        body.rowconfigure(0, weight=1)
        left, right = Panel(body, context.theme), Panel(body, context.theme)
        left.grid(row=0, column=0, sticky="nsew", padx=(0, px(PAD)))
        right.grid(row=0, column=1, sticky="nsew")
        for column, weights in ((left, (3, 2, 2)), (right, (0, 1))):
            column.columnconfigure(0, weight=1)
            for row, weight in enumerate(weights):
                column.rowconfigure(row, weight=weight)
        self._fill_left(left)
        self._fill_right(right)
        context.session.changed.subscribe(self._soon)
        context.starter.changed.subscribe(self._soon)
        context.form.changed.subscribe(self._preview_soon)

    def shown(self) -> None:
        """Update the page, which is not drawn while hidden."""
        self._is_shown = True
        self._preview_soon()
        self._soon()

    def hidden(self) -> None:
        """Draw nothing while hidden."""
        self._is_shown = False

    def show_field(self, path: str) -> bool:
        """Return False: the page has no fields."""
        return False

    def _fill_left(self, left: Panel) -> None:
        context, px = self._context, self._context.theme.px
        self.curves_card, log_card = TabbedCard(left, context.theme), Card(left, context.theme, "Log")
        tk.Grid.grid_configure(self.curves_card, row=0, column=0, sticky="nsew", pady=(0, px(PAD)))
        self.reward_card = Card(left, context.theme, "Reward")
        tk.Grid.grid_configure(self.reward_card, row=1, column=0, sticky="nsew", pady=(0, px(PAD)))
        tk.Grid.grid_configure(log_card, row=2, column=0, sticky="nsew")
        self.reward_chart = RewardChart(self.reward_card.body, context.theme)
        self.reward_chart.pack(fill="both", expand=True, padx=(px(4), 0))
        self._show_rewards(RunState())
        self.chart = LossChart(self.curves_card.add(_LOSS, is_offered=True), context.theme)
        self.chart.pack(fill="both", expand=True, padx=(px(4), 0))
        self.metrics = MetricGrid(self.curves_card.add(_METRICS), context.theme, context.tips)
        self.metrics.pack(fill="both", expand=True, padx=(px(12), 0))
        self.log = LogView(log_card.body, context.theme)
        self.log.pack(fill="both", expand=True, padx=(px(12), 0))

    def _show_rewards(self, state: RunState) -> None:
        """Show the reward curve; hide its card if no reward is measured."""
        self.reward_chart.show(state.rewards)
        if state.rewards:
            self.reward_card.grid()
        else:
            self.reward_card.grid_remove()
        weight, least_px = (2, self._context.theme.px(_REWARD_HEIGHT)) if state.rewards else (0, 0)
        tk.Grid.rowconfigure(self.reward_card.master, 1, weight=weight, minsize=least_px)

    def _fill_right(self, right: Panel) -> None:
        context, px = self._context, self._context.theme.px
        self.facts_card = Card(right, context.theme, "This run")
        self.images_card = TabbedCard(right, context.theme)
        tk.Grid.grid_configure(self.facts_card, row=0, column=0, sticky="nsew", pady=(0, px(PAD)))
        tk.Grid.grid_configure(self.images_card, row=1, column=0, sticky="nsew")
        self.facts = Text(self.facts_card.body, context.theme, colour="label", on="card", wrap_px=300)
        self.facts.pack(anchor="w", padx=(px(12), 0))
        self.facts.bind("<Configure>", lambda _e: self._fit_facts())
        samples, rollout = self.images_card.add(_SAMPLES, is_offered=True), self.images_card.add(_ROLLOUT)
        self.samples = ImageGrid(
            samples, context.theme, context.pump, empty_text=_NO_SAMPLES, on_open=self._open_sample
        )
        self.samples.pack(fill="both", expand=True, padx=(px(12), 0))
        self.rollout_line = Text(rollout, context.theme, role="small", colour="muted", on="card")
        self.rollout_line.pack(anchor="w", padx=(px(12), 0), pady=(0, px(6)))
        self.rollout = ImageGrid(rollout, context.theme, context.pump, tile_px=_ROLLOUT_PX, on_open=self._open_rollout)
        self.rollout.pack(fill="both", expand=True, padx=(px(12), 0))

    def _fit_facts(self) -> None:
        width = self.facts_card.body.winfo_width() - self._context.theme.px(2 * PAD)
        if width > 1 and int(self.facts.cget("wraplength")) != width:
            self.facts.configure(wraplength=width)

    def _soon(self) -> None:
        if self._is_shown:
            self._context.pump.redraw_soon(self, self._follow, at_most_every_seconds=_CHART_SECONDS)

    def _preview_soon(self) -> None:
        if self._is_shown and self._context.session.stage == "idle":
            self._context.pump.redraw_soon(
                (self, "preview"), self._context.starter.refresh_preview, at_most_every_seconds=0.5
            )

    def _follow(self) -> None:
        state, before = self._context.session.state, self._drawn
        self._drawn = state
        self._show_facts(state)
        if state.curve is not before.curve or state.validations is not before.validations:
            self.chart.show(state.curve.points, [v for v in state.validations if math.isfinite(v.loss)])
        if state.metrics is not before.metrics:
            self.metrics.show(state.metrics)
            self.curves_card.offer(_METRICS, is_offered=bool(state.metrics), is_shown=has_method_metrics(state.metrics))
        if state.rewards is not before.rewards:
            self._show_rewards(state)
        if state.rollout is not before.rollout:
            self._show_rollout(state.rollout)
        if state.samples is not before.samples:
            self.samples.show([Tile(Path(s.path), f"{_when(s)}: {s.prompt}") for s in newest_samples(state)])
        if state.log is not before.log:
            self.log.show(state.log)

    def _show_rollout(self, rollout: RolloutSampled | None) -> None:
        self.images_card.offer(_ROLLOUT, is_offered=rollout is not None)
        self.rollout_line.set_text(rollout_line(rollout) if rollout else "")
        self.rollout.show([_rollout_tile(image, image.prompt) for image in (rollout.images if rollout else ())])

    def _show_facts(self, state: RunState) -> None:
        if state.started is not None:
            self.facts_card.heading.set_text("This run")
            self.facts.set_text("\n".join(self._run_lines(state)))
            return
        self.facts_card.heading.set_text("Before you start")
        report = self._context.starter.report
        if report is None:
            self.facts.set_text("Reading settings and images…")
        elif report.preview is None:
            self.facts.set_text("The images cannot be counted yet. Press Start to see what is missing.")
        else:
            self.facts.set_text("\n".join(preview_lines(report.preview)))

    def _run_lines(self, state: RunState) -> list[str]:
        started = state.started
        assert started is not None
        family = FAMILIES.get(started.family)
        labels = {p.name: p.label for p in family.parts} if family else {}
        parts = ", ".join(labels.get(p, p) for p in state.training_parts) or "nothing"
        lines = [f"{'Training' if self._context.session.is_active else 'Trained'}: {parts}"]
        if state.step is not None:
            step = state.step
            lines.append(f"Step {step.step:,} of {step.total_steps:,} in total")
            for name, rates in (("Learning", step.learning_rates), ("Effective learning", step.effective_rates)):
                if rates:
                    lines.append(f"{name} rate: {_rates({labels.get(u, u): rate(r) for u, r in rates.items()})}")
            if step.num_skipped:
                lines.append(f"{count(step.num_skipped, 'skipped step')}")
        if state.validation is not None:
            lines.append(validation_line(state.validation))
        if state.rewards:
            lines.append(reward_line(state.rewards[-1]))
        words = data_words(started.num_images, started.num_prompts, started.num_pairs)
        lines.append(f"{words} on {started.device}")
        lines.append(f"Folder: {as_config_path(Path(started.run_dir))}")
        return lines

    def _open_sample(self, index: int) -> None:
        """Show a sample large, with the earlier ones of its prompt on the slider."""
        state = self._context.session.state
        chosen = newest_samples(state)[index]
        history = [s for s in state.samples if (s.index, s.is_without_ema) == (chosen.index, chosen.is_without_ema)]
        tiles = [Tile(Path(s.path), f"{_when(s)[:1].upper()}{_when(s)[1:]}\n{s.prompt}") for s in history]
        ImageViewer(self._context, tiles, len(tiles) - 1, "Sample")

    def _open_rollout(self, index: int) -> None:
        """Show an image of the newest rollout large, with all of its scores."""
        rollout = self._context.session.state.rollout
        if rollout is not None:
            tiles = [_rollout_tile(image, image_words(image)) for image in rollout.images]
            ImageViewer(self._context, tiles, index, f"Rollout of step {rollout.step + 1:,}")


def _rates(by_unit: Mapping[str, str]) -> str:
    """Return learning rates in words: one number where all are the same."""
    is_one = len(set(by_unit.values())) == 1
    return next(iter(by_unit.values())) if is_one else ", ".join(f"{unit} {rate}" for unit, rate in by_unit.items())


def _rollout_tile(image: SampledImage, text: str) -> Tile:
    score = "" if image.reward is None else short_number(image.reward)
    badge = f"{image.mark} {score}".strip()
    return Tile(Path(image.path), text, badge, _RINGS[image.mark])


def _when(sample: SampleReady) -> str:
    return f"step {sample.step:,}{', without EMA' if sample.is_without_ema else ''}"


def newest_samples(state: RunState) -> list[SampleReady]:
    """Return the newest sample of each prompt, in the order of the prompts, each followed by the one without EMA."""
    newest = {(sample.index, sample.is_without_ema): sample for sample in state.samples}
    return [newest[place] for place in sorted(newest)]
