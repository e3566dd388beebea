"""The Run page: the loss, the method's curves, the newest samples and rollout, the run's facts and the log."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from modules.system.paths import from_root
from modules.system.problem import count
from trainer.rollout_events import Mark, RolloutSampled, SampledImage
from trainer.run_folder.elsewhere import Elsewhere, elsewhere_of
from trainer.run_folder.run_dir import begun_at
from ui.features.run.curves import MetricGrid, RunCurves
from ui.features.run.end_card import EndCard
from ui.features.run.facts import describe_image, machine_line, rollout_line, run_lines
from ui.features.run.model import Starter
from ui.features.run.notices import RunNotices
from ui.features.run.reward_panel import RewardPanel
from ui.features.run.samples import RunSamples
from ui.forms.context import Context
from ui.forms.page import PageFrame, page_task
from ui.forms.setting_pages import PageSpec
from ui.loop.interaction import BEFORE_START
from ui.loop.metric_curves import has_method_metrics, short_number
from ui.loop.past_runs import read_last_state
from ui.loop.run_state import RunState
from ui.loop.wording import plan_lines, preview_lines, start_figures
from ui.widgets.card import Card
from ui.widgets.image_grid import ImageGrid, Tile
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.key_figures import KeyFigures
from ui.widgets.log import LogPanel
from ui.widgets.panel import Panel, Text
from ui.widgets.scroll import ScrollFrame
from ui.widgets.tabs import TabbedCard
from ui.widgets.theme import PAD, is_low

_CHART_SECONDS = 0.25
_LOSS, _METRICS, _REWARDS, _LOG, _SAMPLES, _ROLLOUT = "Curves", "Metrics", "Rewards", "Log", "Samples", "Rollout"
_FACTS = "This run"
_ROLLOUT_PX = 84
_TOOLS_ROOM_PX = 240  # of the left column; lower, the chart has the room of the buttons above it
_CHART_ROOM_PX = 130  # of the left column; lower, the labels of the chart would be cut
_SAMPLES_ROOM_PX, _MIN_SAMPLES_PX = 240, 130  # of the right column, below which it has no samples; of their card
_HEADING_PX = 76  # of the card of the facts, with its edges
_FACTS_SHARE, _MIN_FACTS_PX = 0.36, 54
_PLAN_SHARE = 0.62  # before a run, when there are no samples
_LOG_ROOM_PX = 400  # of the column; lower, the log is a tab next to the curves
_RINGS: Mapping[Mark, str] = {"": "", "best": "good", "worst": "error"}


class RunPage:
    """Shows the session; before the first run it shows the preview."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self._context = context
        self._starter = context.models.of(Starter)
        self._is_built = False
        self._was_active = False
        self._drawn_state = RunState()
        self._noted_dir = Path()  # the run whose machine and beginning are known
        self._elsewhere: Elsewhere | None = None
        self._begun: float | None = None
        self._last_run: RunState | None = None  # the last run of the workspace, until there is one of this window
        self._last_workspace: Path | None = None
        self._curves: tuple[object, ...] = (None, None, None)
        self._log_place: tk.Misc | None = None
        self._samples_place: tk.Misc | None = None
        self._facts_place: tk.Misc | None = None
        px = context.theme.px
        outer = Panel(self.frame, context.theme)
        outer.grid(row=1, column=0, sticky="nsew", padx=px(PAD + 4), pady=(0, px(PAD)))
        top = Panel(outer, context.theme)
        top.pack(fill="x")
        Panel(top, context.theme, height=1, width=1).pack(side="bottom")  # an empty frame would keep its last height
        self.end_card = EndCard(top, context, open_sample=self._open_sample, read=self._soon)
        self.notices = RunNotices(outer, context)
        self.notices.pack(fill="x")
        self.notices.bind("<Configure>", lambda _e: self._soon(), add="+")
        body = Panel(outer, context.theme)
        body.pack(fill="both", expand=True)
        body.columnconfigure(0, weight=3, uniform="run")
        body.columnconfigure(1, weight=2, uniform="run")
        body.rowconfigure(0, weight=1)
        left, right = Panel(body, context.theme), Panel(body, context.theme)
        left.grid(row=0, column=0, sticky="nsew", padx=(0, px(PAD)))
        right.grid(row=0, column=1, sticky="nsew")
        for column, weights in ((left, (3, 2)), (right, (0, 1))):
            column.columnconfigure(0, weight=1)
            for row, weight in enumerate(weights):
                column.rowconfigure(row, weight=weight)
        # In parts: a start opens the page, and the training thread competes for the interpreter from then on.
        context.pump.work_through(page_task(spec.key), self._build(left, right))
        context.session.changed.subscribe(self._soon)
        self._starter.changed.subscribe(self._soon)
        context.form.changed.subscribe(self._preview_soon)
        context.captions_changed.subscribe(self._preview_soon)
        context.form.changed.subscribe(self._follow_settings_soon)

    def on_show(self) -> None:
        """Update the page, which is not drawn while hidden."""
        self._look_for_last()
        self._preview_soon()
        self._follow_settings_soon()
        self._soon()

    def _look_for_last(self) -> None:
        """Read the last run of the workspace, while this window has had none."""
        workspace = from_root(self._context.form.config.general.workspace_dir)
        if self._context.session.state != RunState() or workspace == self._last_workspace:
            return
        self._last_workspace = workspace

        def keep(state: RunState | None) -> None:
            if workspace == self._last_workspace:  # else the newer one's may have been read before
                self._last_run = state
                self._soon()

        self._context.pump.background.run(partial(read_last_state, workspace), keep)

    @property
    def _state(self) -> RunState:
        """The state of the window's run; without one, what is left of the last run of the workspace."""
        state = self._context.session.state
        return self._last_run if self._last_run is not None and state == RunState() else state

    def _build(self, left: Panel, right: Panel) -> Iterator[None]:
        """Build both columns, one part per `next`; nothing is drawn before the last one."""
        yield from self._fill_left(left)
        yield from self._fill_right(right)
        self._is_built = True
        self._fit_left()
        self._fit_facts()
        self._soon()
        self._preview_soon()

    def _fill_left(self, left: Panel) -> Iterator[None]:
        context, px = self._context, self._context.theme.px
        self.curves_card, self.log_card = (
            TabbedCard(left, context.theme, kept=context.view_state.of("run curves", dict)),
            Card(left, context.theme),
        )
        tk.Grid.grid_configure(self.curves_card, row=0, column=0, sticky="nsew", pady=(0, px(PAD)))
        self.curves = RunCurves(self.curves_card.add(_LOSS, is_offered=True), context)
        self.curves.pack(fill="both", expand=True, padx=(px(4), 0))
        self.chart = self.curves.chart
        yield
        self.metrics = MetricGrid(self.curves_card.add(_METRICS), context.theme, context.tips)
        self.metrics.pack(fill="both", expand=True, padx=(px(12), 0))
        yield
        self.rewards = RewardPanel(self.curves_card.add(_REWARDS), context.theme, context.tips)
        self.rewards.pack(fill="both", expand=True, padx=(px(4), 0))
        tk.Grid.grid_configure(self.log_card, row=1, column=0, sticky="nsew")
        left.bind("<Configure>", lambda _e: context.pump.redraw_soon((self, "left"), self._fit_left), add="+")
        yield
        self._samples_tab, self._facts_tab = self.curves_card.add(_SAMPLES), self.curves_card.add(_FACTS)
        self._log_tab = self.curves_card.add(_LOG)
        self.log = LogPanel(  # in its card, or in a tab of the curves' card
            left,
            context.theme,
            on_copied=lambda number: context.notify(f"Copied {count(number, 'line')}."),
            kept=context.view_state.of("log", dict),
        )
        self._place_log(self.log_card.body)
        yield

    def _fit_left(self) -> None:
        """Give the curves the place of the log in a low window."""
        left, px = self.log_card.master, self._context.theme.px
        if not self._is_built:
            return
        if left.winfo_height() > 1:
            has_card = left.winfo_height() >= px(_LOG_ROOM_PX)
            self.curves.show_tools(is_shown=left.winfo_height() >= px(_TOOLS_ROOM_PX))
            self.curves.show_chart(is_shown=left.winfo_height() >= px(_CHART_ROOM_PX))
            self._place_log(self.log_card.body if has_card else self._log_tab)
            self.curves_card.offer(_LOG, is_offered=not has_card, is_shown=False)
            left.rowconfigure(1, weight=2 if has_card else 0)
            tk.Grid.grid_configure(self.curves_card, pady=(0, px(PAD) if has_card else 0))
            if has_card:
                self.log_card.grid()
            else:
                self.log_card.grid_remove()

    def _place_log(self, place: tk.Misc) -> None:
        if place is not self._log_place:
            self._log_place = place
            self.log.pack(in_=place, fill="both", expand=True, padx=(self._context.theme.px(12), 0))
            self.log.lift()

    def _fill_right(self, right: Panel) -> Iterator[None]:
        context, px = self._context, self._context.theme.px
        self.facts_card = Card(right, context.theme, _FACTS)
        self.images_card = TabbedCard(right, context.theme, kept=context.view_state.of("run images", dict))
        tk.Grid.grid_configure(self.facts_card, row=0, column=0, sticky="nsew", pady=(0, px(PAD)))
        tk.Grid.grid_configure(self.images_card, row=1, column=0, sticky="nsew")
        self.fit_button = context.buttons.make(self.facts_card, "fit", on="card")
        self.figures = KeyFigures(self.facts_card.body, context.theme, on="card")
        self.figures.pack(fill="x", padx=(px(12), 0), pady=(0, px(6)))
        self._facts_view = ScrollFrame(right.master, context.theme, "card")  # in its card, or in a tab
        self._place_facts(self.facts_card.body)
        self.facts = Text(self._facts_view.body, context.theme, colour="label", on="card", wrap_px=300)
        self.facts.pack(anchor="w")
        for part in (self.facts, self._facts_view.canvas, right.master):
            part.bind("<Configure>", lambda _e: context.pump.redraw_soon((self, "facts"), self._fit_facts), add="+")
        yield
        self._samples_view = self.images_card.add(_SAMPLES, is_offered=True)
        rollout = self.images_card.add(_ROLLOUT)
        self.samples = RunSamples(right.master, context)  # in their card, or in a tab of the curves' card
        self._place_samples(self._samples_view)
        yield
        self.rollout_line = Text(rollout, context.theme, role="small", colour="muted", on="card")
        self.rollout_line.pack(anchor="w", padx=(px(12), 0), pady=(0, px(6)))
        self.rollout = ImageGrid(rollout, context.theme, context.pump, tile_px=_ROLLOUT_PX, on_open=self._open_rollout)
        self.rollout.pack(fill="both", expand=True, padx=(px(12), 0))

    def _place_samples(self, place: tk.Misc) -> None:
        if place is not self._samples_place:
            self._samples_place = place
            self.samples.pack(in_=place, fill="both", expand=True, padx=(self._context.theme.px(12), 0))
            self.samples.lift()

    def _place_facts(self, place: tk.Misc) -> None:
        if place is not self._facts_place:
            self._facts_place = place
            self._facts_view.pack(in_=place, fill="both", expand=True, padx=(self._context.theme.px(12), 0))
            self._facts_view.lift()

    def _fit_facts(self) -> None:
        """Wrap the facts at their width, and leave the samples more than half of the height.

        In a low window both are tabs next to the curves, which get the whole width; the facts before a run stay.
        """
        if not self._is_built:
            return
        canvas = self._facts_view.canvas
        width = canvas.winfo_width()
        if width > 1 and int(self.facts.cget("wraplength")) != width:
            self.facts.configure(wraplength=width)
        has_begun, right = self._context.session.state.started is not None, self.facts_card.master
        share = _FACTS_SHARE if has_begun else _PLAN_SHARE
        whole_px, px = right.master.winfo_height(), self._context.theme.px
        room = int(whole_px * share)
        has_card = whole_px >= px(_SAMPLES_ROOM_PX)
        if whole_px > 1:
            self._place_samples(self._samples_view if has_card else self._samples_tab)
            self.curves_card.offer(_SAMPLES, is_offered=not has_card, is_shown=False)
            are_tabs = has_begun and not has_card
            self._place_facts(self._facts_tab if are_tabs else self.facts_card.body)
            self.curves_card.offer(_FACTS, is_offered=are_tabs, is_shown=False)
            self.log_card.master.grid_configure(columnspan=2 if are_tabs else 1, padx=(0, 0 if are_tabs else px(PAD)))
            if are_tabs:
                right.grid_remove()
            else:
                right.grid()
        if has_card:
            self.images_card.grid()
            room = min(room, whole_px - self.figures.winfo_reqheight() - px(_HEADING_PX + _MIN_SAMPLES_PX))
        elif whole_px > 1:
            self.images_card.grid_remove()
            room = whole_px - px(_HEADING_PX)
        height = min(self.facts.winfo_reqheight(), max(room, self._context.theme.px(_MIN_FACTS_PX)))
        line_px = int(canvas.tk.call("font", "metrics", self._context.theme.font("body"), "-linespace"))
        height = max(1, height // line_px) * line_px  # no line is hidden in part
        if height != int(canvas.cget("height")):
            canvas.configure(height=height)

    def _soon(self) -> None:
        if self.frame.is_shown and self._is_built:
            self._context.pump.redraw_soon(self, self._follow, at_most_every_seconds=_CHART_SECONDS)

    def _preview_soon(self) -> None:
        if self.frame.is_shown and self._is_built and self._context.session.stage == "idle":
            self._context.pump.redraw_soon((self, "preview"), self._starter.refresh_preview, at_most_every_seconds=0.5)

    def _follow_settings_soon(self) -> None:
        if self.frame.is_shown:
            self._context.pump.redraw_soon(
                (self, "edited"), self.notices.follow_settings, at_most_every_seconds=_CHART_SECONDS
            )

    def _follow(self) -> None:
        state, before = self._state, self._drawn_state
        self._drawn_state = state
        self._show_facts(self._context.session.state)
        self.notices.follow()
        self._follow_end(state)
        if self._was_active != (is_active := self._context.session.is_active):
            self._was_active = is_active
            self.notices.follow_settings()
        curves = (state.series, state.validations, state.rewards)
        if any(now is not then for now, then in zip(curves, self._curves, strict=True)):
            self._curves = curves
            self.curves.show(state)
        if state.metrics is not before.metrics:
            self.metrics.show(state.metrics)
            is_shown = has_method_metrics(state.metrics) and not state.rewards
            self.curves_card.offer(_METRICS, is_offered=bool(state.metrics), is_shown=is_shown)
        if state.rewards is not before.rewards or (state.rewards and state.metrics is not before.metrics):
            self.rewards.show(state)
            self.curves_card.offer(_REWARDS, is_offered=bool(state.rewards))
        if state.rollout is not before.rollout:
            self._show_rollout(state.rollout)
        self.samples.follow(state)
        if state.log is not before.log:
            self.log.show(state.log)

    def _follow_end(self, state: RunState) -> None:
        """Show the end of a run; in a low window once it is decided which model is the result."""
        is_open = self.notices.asks_for_result and is_low(self._context.root.winfo_height(), self._context.theme)
        is_active = self._context.session.is_active or is_open
        self.end_card.follow(state, is_active=is_active, result_step=self.notices.used_step(state))

    def _show_rollout(self, rollout: RolloutSampled | None) -> None:
        self.images_card.offer(_ROLLOUT, is_offered=rollout is not None)
        self.rollout_line.set_text(rollout_line(rollout) if rollout else "")
        self.rollout.show([_rollout_tile(image, image.prompt) for image in (rollout.images if rollout else ())])

    def _show_facts(self, state: RunState) -> None:
        report = self._starter.report if state.started is None else None
        note = self._starter.machine_note
        figures = start_figures(report.preview) if report is not None and report.preview is not None else []
        self.figures.show(figures[: 1 if note else None])  # time and memory are estimated for this computer
        if state.started is not None:
            self.facts_card.heading.set_text(_FACTS)
            self.facts.set_text("\n".join(self._run_lines(state, Path(state.started.run_dir))))
            self.fit_button.place_forget()
            return
        is_active = self._context.session.is_active  # it has begun, and loads
        self.facts_card.heading.set_text(_FACTS if is_active else BEFORE_START)
        px = self._context.theme.px
        if report is not None and report.preview is not None and report.preview.memory and not note and not is_active:
            tk.Place.place_configure(self.fit_button, relx=1.0, x=-px(8), y=px(5), anchor="ne")
        else:
            self.fit_button.place_forget()
        if report is None:
            self.facts.set_text("Reading settings and images…")
        elif report.preview is None:
            self.facts.set_text("The images cannot be counted yet. Press Start to see what is missing.")
        else:
            taken = next((p.message for p in report.problems if p.remedy == "destination"), "")
            lines = [*preview_lines(report.preview), "", *plan_lines(self._context.form.config, taken)]
            lines = [note, "", *lines] if note else lines
            if not is_active and self._last_run is not None and self._last_run.started is not None:
                lines += ["", f"Shown here: the last run, {Path(self._last_run.started.run_dir).name}."]
            self.facts.set_text("\n".join(lines))

    def _run_lines(self, state: RunState, run_dir: Path) -> list[str]:
        """Return the facts of a run, and its machine if that is another one, for which its folder is read once."""
        if self._noted_dir != run_dir:
            self._noted_dir, self._elsewhere, self._begun = run_dir, None, None
            keep = partial(self._keep_notes, run_dir)
            self._context.pump.background.run(lambda: (elsewhere_of(run_dir), begun_at(run_dir)), keep)
        elsewhere = self._elsewhere
        remote = elsewhere.remote if elsewhere is not None else ""
        lines = run_lines(state, is_active=self._context.session.is_active, remote=remote)
        return [*lines, machine_line(state, elsewhere, self._begun)] if elsewhere is not None else lines

    def _keep_notes(self, run_dir: Path, notes: tuple[Elsewhere | None, float | None]) -> None:
        if run_dir == self._noted_dir:
            self._elsewhere, self._begun = notes
            self._soon()

    def _open_sample(self, path: Path) -> None:
        """Show a sample large."""
        table = self.samples.table
        found = next((sample for sample in table.samples if Path(sample.path) == path), None)
        if found is not None:
            self.samples.open(table.place_of(found))

    def _open_rollout(self, index: int) -> None:
        """Show an image of the newest rollout large, with all of its scores."""
        rollout = self._state.rollout
        if rollout is not None:
            tiles = [_rollout_tile(image, describe_image(image)) for image in rollout.images]
            context = self._context
            ImageViewer(
                context.root, context.theme, context.pump, tiles, index, f"Rollout of step {rollout.step + 1:,}"
            )


def _rollout_tile(image: SampledImage, text: str) -> Tile:
    score = "" if image.reward is None else short_number(image.reward)
    badge = f"{image.mark} {score}".strip()
    return Tile(Path(image.path), text, badge, _RINGS[image.mark])
