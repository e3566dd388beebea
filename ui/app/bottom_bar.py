"""The bottom bar: phase, progress, figures, and the buttons Start, Stop, Pause and Resume."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from modules.config.schema import Config
from modules.system.problem import count
from trainer.wording import PHASE_LABELS, format_loss, format_speed
from ui.features.remote.model import HERE, Machines
from ui.forms.changes import edits_since_start
from ui.forms.context import Context
from ui.loop.wording import STATUS_COLOURS, format_download, format_duration
from ui.widgets.controls import Button
from ui.widgets.fitted_text import FittedText
from ui.widgets.menu import make_menu, open_at
from ui.widgets.panel import Panel, Text
from ui.widgets.progress import ThinBar
from ui.widgets.theme import GAP, PAD

if TYPE_CHECKING:
    from ui.loop.run_state import RunState

FIGURES = ("Loss", "Smoothed", "Images/s", "Time left")
_FIGURE_WIDTHS = {"Time left": 96}
_FIGURE_WIDTH = 72
_BAR_WIDTH = 132
_BAR_GAP = 6  # above it
_NARROW_BAR_WIDTH = 96
_NARROW_WIDTH = 1180  # of the window
_RARE_FIGURES = ("Smoothed", "Images/s")  # the Run page has them, too
_TINY_WIDTH = 860  # with the time left alone
_TINY_FIGURES = ("Time left",)
_START_LABELS = {"idle": "Start", "checking": "Checking…", "stopping": "Stopping…"}  # unless it stops


class BottomBar(Panel):
    """Shows the session; empty while nothing runs. What the first run shows first is built then."""

    def __init__(self, master: Panel, context: Context) -> None:
        super().__init__(master, context.theme, "bar")
        self._context = context
        self._message = ""
        self._message_state: object = None
        self._num_edits = 0
        self._edited_run: Config | None = None
        px = context.theme.px
        inner = Panel(self, context.theme, "bar")
        inner.pack(fill="x", padx=px(PAD + 4), pady=px(12))
        inner.columnconfigure(0, weight=1)
        self._add_phase(inner)
        self._inner = inner
        self._add_start()
        context.tips.attach(self.detail, lambda: self.detail.hidden_text)
        self.bind("<Configure>", lambda _e: context.pump.redraw_soon((self, "width"), self._make_room))
        context.session.changed.subscribe(self._refresh_soon)
        context.starter.changed.subscribe(self._refresh_soon)
        context.models.of(Machines).changed.subscribe(self._refresh_soon)
        context.form.changed.subscribe(self._count_edits_soon)
        context.navigation.page_wanted.subscribe(lambda _page: self._refresh_soon())
        self.refresh()

    @cached_property
    def figures(self) -> Mapping[str, Text]:
        """The figures of the run, by their name."""
        return {name: self._add_figure(self._inner, name, 3 + i) for i, name in enumerate(FIGURES)}

    @cached_property
    def _epochs(self) -> tuple[Text, ThinBar]:
        return self._add_progress(self._inner, 1)

    @cached_property
    def _steps(self) -> tuple[Text, ThinBar]:
        return self._add_progress(self._inner, 2)

    @property
    def epoch_label(self) -> Text:
        """The epoch and their number."""
        return self._epochs[0]

    @property
    def epoch_bar(self) -> ThinBar:
        """The progress of the run."""
        return self._epochs[1]

    @property
    def step_label(self) -> Text:
        """The step of the epoch and their number."""
        return self._steps[0]

    @property
    def step_bar(self) -> ThinBar:
        """The progress of the epoch."""
        return self._steps[1]

    @cached_property
    def second(self) -> Button:
        """The button next to Start: Pause, Continue, Resume, or the page of choices."""
        button = self._make_button("Pause", self._press_second, width=84, rank=0, changes=True)
        tk.Misc.lower(button, self.start)  # Tab comes to it before Start
        self._context.tips.attach(button, self._second_tip)
        return button

    @cached_property
    def machine(self) -> Button:
        """The button that chooses where the next run trains."""
        button = self._make_button("", self._open_machines_menu)
        self._context.tips.attach(button, self._machine_tip)
        return button

    @cached_property
    def more(self) -> Button:
        """The button that opens the other ways to pause."""
        button = self._make_button("▾", self._open_pause_menu, width=28)
        self._context.tips.attach(button, lambda: "Other ways to pause")
        return button

    @property
    def _has_figures(self) -> bool:
        run = self._context.session.shown
        return run is not None and (self._context.session.is_active or run.step is not None)

    @property
    def _are_figures_built(self) -> bool:
        return "figures" in vars(self)

    def notify(self, text: str) -> None:
        """Show a short message until the next change."""
        self._message = text
        self._message_state = self._context.session.shown
        self._refresh_soon()

    def refresh(self) -> None:
        """Update everything from the session."""
        session, run = self._context.session, self._context.session.shown
        if session.config is not self._edited_run:  # another run
            self._edited_run, self._num_edits = session.config, 0
            self._count_edits_soon()
        self._show_phase(session.stage, run)
        # The figures of a run stay until the next one starts; only an active run has bars.
        self.phase_bar.set((run.phase_share or 0.0) if run is not None and session.is_active else 0.0)
        if run is not None and (self._has_figures or self._are_figures_built):
            self.epoch_bar.set(run.run_share if session.is_active else 0.0)
            self.step_bar.set(run.epoch_share if session.is_active else 0.0)
            self._show_counts(run)
            self._show_figures(run)
        self._show_buttons()
        self._make_room()

    def _make_room(self) -> None:
        """Give the status the room of the figures before a run, and of the rarer ones in a narrow window."""
        session = self._context.session
        _set_visible(self.phase_bar, is_shown=session.is_active and session.state.phase_share is not None)
        room = self._room_of(self.phase_bar) if session.is_active else 0
        self._phase_box.rowconfigure(2, minsize=room)  # also without it: the page stays where it is
        has_figures = self._has_figures
        if not has_figures and not self._are_figures_built:
            return
        is_narrow = self.winfo_width() < self._context.theme.px(_NARROW_WIDTH)
        is_tiny = self.winfo_width() < self._context.theme.px(_TINY_WIDTH)
        for name, value in self.figures.items():
            has_room = not (is_narrow and name in _RARE_FIGURES) and not (is_tiny and name not in _TINY_FIGURES)
            _set_visible(value.master, is_shown=has_figures and has_room)
        for label, bar in ((self.epoch_label, self.epoch_bar), (self.step_label, self.step_bar)):
            _set_visible(label.master, is_shown=has_figures and not is_tiny)
            _set_visible(bar, is_shown=session.is_active)
            bar.set_width(_NARROW_BAR_WIDTH if is_narrow else _BAR_WIDTH)

    def _refresh_soon(self) -> None:
        self._context.pump.redraw_soon("bottom bar", self.refresh, at_most_every_seconds=0.1)

    def _count_edits_soon(self) -> None:
        self._context.pump.redraw_soon("edits", self._count_edits, at_most_every_seconds=0.3)

    def _count_edits(self) -> None:
        """Count the settings that the current run does not have; on every page they are shown next to its phase."""
        run_config = self._context.session.form_config
        self._num_edits = 0 if run_config is None else len(edits_since_start(self._context.form.config, run_config))
        self._refresh_soon()

    def _add_phase(self, inner: Panel) -> None:
        self._phase_box = box = Panel(inner, self._context.theme, "bar")
        box.grid(row=0, column=0, sticky="ew")
        box.columnconfigure(0, weight=1)
        self.phase = Text(box, self._context.theme, "Ready", role="strong", on="bar")
        self.phase.grid(row=0, column=0, sticky="w")
        self.detail = FittedText(box, self._context.theme, role="small", colour="muted", on="bar")
        self.detail.grid(row=1, column=0, sticky="ew", pady=(self._context.theme.px(2), 0))
        self.phase_bar = ThinBar(box, self._context.theme, width_px=_BAR_WIDTH)
        self.phase_bar.grid(row=2, column=0, sticky="sw")

    def _room_of(self, bar: ThinBar) -> int:
        return self._context.theme.px(_BAR_GAP) + bar.winfo_reqheight()

    def _add_progress(self, inner: Panel, column: int) -> tuple[Text, ThinBar]:
        px = self._context.theme.px
        box = Panel(inner, self._context.theme, "bar")
        box.grid(row=0, column=column, sticky="se", padx=(px(20), 0))
        label = Text(box, self._context.theme, "", role="small", colour="muted", on="bar")
        label.grid(row=0, column=0, sticky="w")
        bar = ThinBar(box, self._context.theme, width_px=_BAR_WIDTH)
        bar.grid(row=1, column=0, sticky="sw")
        box.rowconfigure(1, minsize=self._room_of(bar))  # also without the bar, so that the label stays in its place
        return label, bar

    def _add_figure(self, inner: Panel, name: str, column: int) -> Text:
        px = self._context.theme.px
        box = Panel(inner, self._context.theme, "bar", width=px(_FIGURE_WIDTHS.get(name, _FIGURE_WIDTH)), height=px(38))
        box.grid(row=0, column=column, sticky="s", padx=(px(18 if column == 3 else 4), 0))
        box.pack_propagate(False)
        Text(box, self._context.theme, name, role="caption", colour="muted", on="bar").pack(anchor="w")
        value = Text(box, self._context.theme, "–", role="figure", on="bar")
        value.pack(anchor="w")
        return value

    def _add_start(self) -> None:
        context = self._context
        self._buttons = Panel(self._inner, context.theme, "bar")
        self._buttons.grid(row=0, column=3 + len(FIGURES), sticky="e", padx=(context.theme.px(12), 0))
        self.second_name = ""
        self.start = self._make_button(
            "Start", lambda: context.actions.run(self._start_name()), style="primary", width=104, rank=0, changes=True
        )
        self.start.pack(side="right", padx=(GAP, 0))
        context.tips.attach(self.start, lambda: context.actions[self._start_name()].tip)
        self._menu: tk.Menu | None = None

    def _make_button(self, label: str, press: Callable[[], object], **options: Any) -> Button:
        return Button(self._buttons, self._context.theme, label, press, on="bar", height=36, **options)

    def _show_phase(self, stage: str, run: RunState | None) -> None:
        session, title, detail, tone = self._context.session, *_describe_phase(stage, run)
        detail = session.work_of_check or detail
        is_between = stage == "idle" and session.is_reserved
        if is_between:
            title, detail, tone = PHASE_LABELS["starting"], "the next run of the queue", "text"
        if self._num_edits and not detail and session.is_active:
            detail = f"{count(self._num_edits, 'change')} for the next run"
        if self._message and self._message_state is run and stage in ("idle", "paused"):
            detail = self._message
            if stage == "idle" and not is_between:
                title, tone = "Ready", "text"  # not in the colour of the last run's end
        self.phase.set_text(title)
        self.phase.recolour(tone)
        self.detail.show(detail)

    def _show_counts(self, state: RunState) -> None:
        step = state.step
        self.epoch_label.set_text(f"Epoch {step.epoch:,} of {step.epochs:,}" if step else "Epoch")
        self.step_label.set_text(f"Step {step.epoch_step:,} of {step.epoch_steps:,}" if step else "Step")

    def _show_figures(self, state: RunState) -> None:
        step = state.step
        values = (
            format_loss(step.loss) if step else "–",
            format_loss(step.smoothed_loss) if step else "–",
            format_speed(step.images_per_second) if step else "–",
            format_duration(state.seconds_left),
        )
        for name, value in zip(FIGURES, values, strict=True):
            self.figures[name].set_text(value)

    def _show_buttons(self) -> None:
        session, stage = self._context.session, self._context.session.stage
        can_stop, can_start = session.can_stop, stage == "idle" and not session.is_reserved
        label = "Stop" if can_stop else _START_LABELS[stage]
        if label == "Start" and self._context.starter.fork_from is not None:
            label = "Start the fork"
        if self.start.cget("text") != label:
            self.start.configure(text=label)
        self.start.restyle("danger" if can_stop or stage == "stopping" else "primary" if can_start else "plain")
        self.start.set_enabled(can_stop or can_start)
        self._show_second(stage)
        self._show_machine(stage)

    def _show_machine(self, stage: str) -> None:
        """Show where the next run trains, if there is a choice; a fork trains here, where its backup is."""
        machines = self._context.models.of(Machines)
        if "machine" in vars(self):
            self.machine.pack_forget()
        if machines.known and stage == "idle" and self._context.starter.fork_from is None:
            self.machine.configure(text=f"On {machines.chosen} ▾" if machines.chosen else f"{HERE} ▾")
            self.machine.pack(side="left", padx=(0, GAP))

    def _machine_tip(self) -> str:
        machines = self._context.models.of(Machines)
        remote = machines.known.get(machines.chosen)
        if remote is None or not remote.price_per_hour:
            return "Where the next run trains"
        return f"Where the next run trains. {remote.name} costs {remote.price_per_hour:g} an hour."

    def make_machines_menu(self) -> tk.Menu:
        """Return the menu of the places where the next run can train."""
        machines = self._context.models.of(Machines)
        self._menu = make_menu(self, self._context.theme)
        for name, label in machines.places.items():
            self._menu.add_command(label=label, command=partial(machines.choose, name))
        self._menu.add_separator()
        self._menu.add_command(label="Machines…", command=partial(self._context.actions.run, "machines"))
        return self._menu

    def _open_machines_menu(self) -> None:
        open_at(self.make_machines_menu(), self.machine, above=True)

    def _show_second(self, stage: str) -> None:
        may_resume = stage == "idle" and not self._context.session.is_reserved
        names = {"running": "pause", "paused": "unpause"}
        name = names.get(stage, "resume" if may_resume and self._context.starter.resumable else "")
        if stage == "running" and self._waits_for_choices():
            name = "page_choose"  # a run that waits need not be paused
        if name == self.second_name:
            return
        self.second_name = name
        self.second.pack_forget()
        self.more.pack_forget()
        if name in ("pause", "unpause"):
            self.more.pack(side="right", padx=(2, 0))
        if name:
            self.second.configure(text=self._context.actions[name].label)
            self.second.restyle("primary" if name == "page_choose" else "plain")
            self.second.pack(side="right")
            self.start.lift()  # made first, but last for Tab, as it looks

    def _waits_for_choices(self) -> bool:
        """Return whether the run waits for choices, and their page is not open."""
        return self._context.session.state.choices is not None and self._context.navigation.page != "choose"

    def _start_name(self) -> str:
        return "stop" if self._context.session.is_active or self._context.session.can_stop else "start"

    def _press_second(self) -> None:
        if self.second_name:
            self._context.actions.run(self.second_name)

    def make_pause_menu(self) -> tk.Menu:
        """Return the menu of the ways to pause, or to continue."""
        self._menu = make_menu(self, self._context.theme)
        for name in ("pause", "pause_free", "unpause"):
            action = self._context.actions[name]
            state: Literal["normal", "disabled"] = "normal" if action.is_enabled() else "disabled"
            run = partial(self._context.actions.run, name)
            self._menu.add_command(label=action.label, accelerator=action.shortcut, command=run, state=state)
        return self._menu

    def _open_pause_menu(self) -> None:
        open_at(self.make_pause_menu(), self.second, above=True)

    def _second_tip(self) -> str:
        if not self.second_name:
            return ""
        tip = self._context.actions[self.second_name].tip
        if self.second_name == "page_choose":
            return f"{tip}: the run waits until you have chosen among its images"
        backup = self._context.starter.resumable
        if self.second_name == "resume" and backup is not None:
            return f"{tip}\nStep {backup.step:,}, from {backup.created.replace('T', ' ')}\n{backup.run_dir}"
        return tip


def _set_visible(box: tk.Misc, *, is_shown: bool) -> None:
    if is_shown:
        tk.Grid.grid_configure(box)  # type: ignore[arg-type]
    else:
        tk.Grid.grid_remove(box)  # type: ignore[arg-type]


def _describe_phase(stage: str, state: RunState | None) -> tuple[str, str, str]:
    """Return the text of the phase, its detail and its colour; `state` is None before the first run."""
    if stage == "checking":
        return PHASE_LABELS["checking"], "reading settings and images", "text"
    if state is None:
        return PHASE_LABELS[""], "", "text"
    if stage == "idle":
        end = state.end
        if end is None:
            return PHASE_LABELS[""], "", "text"
        return end.status.label, end.text, STATUS_COLOURS.get(end.status, "good")
    if stage == "paused" and state.phase != "paused":  # the run finishes its step, or cannot be reached at the moment
        return "Pausing", state.detail, "text"
    phase = stage if stage == "stopping" else state.phase
    detail = state.detail
    if phase in ("loading", "sending") and state.downloading is not None:
        title = "Downloading" if phase == "loading" else PHASE_LABELS[phase]
        return title, format_download(state.downloading, state.detail if phase == "loading" else ""), "text"
    if phase == "caching" and state.cache is not None:
        detail = f"{state.cache.done:,} of {state.cache.total:,} {state.cache.what}"
    elif phase == "sampling" and state.sampling is not None:
        detail = f"{state.sampling.done:,} of {state.sampling.total:,} denoising steps"
    elif phase == "choosing" and state.choices is not None:
        return PHASE_LABELS[phase], f"{count(state.choices.num_open, 'choice')} left", "accent"
    return PHASE_LABELS.get(phase, phase), detail, "text"
