"""Home: the ways to begin, the config in the window, the newest runs, this computer, and the queue."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from modules.config.presets import DEMO
from ui.app.home_cards import MachineCard, QueueCard, RecentCard
from ui.app.home_model import CardButton, RecentRuns, Work, work_of
from ui.features.first_steps import HIDDEN, WAYS, note_beginning
from ui.features.run.model import Starter
from ui.forms.context import Context
from ui.forms.model import Source
from ui.forms.page import PageFrame
from ui.forms.setting_pages import PageSpec
from ui.widgets.card import Card
from ui.widgets.controls import Button, ButtonStyle
from ui.widgets.fitted_text import FittedText
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import CONTROL_HEIGHT, GAP, PAD

if TYPE_CHECKING:
    from trainer.run_folder.records import RunRecord

_WIDE_FROM_PX, _SIDE_PX = 900, 330  # of the page, and of its second column
_LOOK_SECONDS, _QUIET_SECONDS = 5.0, 0.3
_FIRST = "How would you like to begin?"


class HomePage:
    """Cards that follow the window; runs and hardware are read in the background while the page is open."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self._context = context
        self._was_active, self._is_wide, self._wants_machine = False, False, False
        self._next_look = 0.0
        self._runs = RecentRuns(context.pump.background)
        body = self._body = self.frame.add_scroll(context).body
        self.work = WorkCard(body, context)
        self.recent = RecentCard(body, context)
        self._side = Panel(body, context.theme)
        self.machine = MachineCard(self._side, context)
        self.queue = QueueCard(self._side, context)
        self._runs.changed.subscribe(self._show_runs)
        body.bind("<Configure>", lambda _e: context.pump.redraw_soon((self, "width"), self._arrange), add="+")
        signals = (
            context.form.changed,
            context.session.changed,
            context.starter.changed,
            context.field_problems.changed,
            context.preferences.changed,
        )
        for signal in signals:
            signal.subscribe(self._soon)
        context.pump.add_source(self._look)
        self._place(is_wide=True)
        self.work.refresh(None)

    def on_show(self) -> None:
        """Follow the window, and read the runs and the hardware once it is drawn."""
        self._next_look, self._wants_machine = time.monotonic() + _QUIET_SECONDS, True
        self._soon()

    def _soon(self) -> None:
        if self.frame.is_shown:
            self._context.pump.redraw_soon(self, self._refresh, at_most_every_seconds=0.2)

    def _refresh(self) -> None:
        is_active = self._context.session.is_active
        if is_active != self._was_active:  # a run has begun or ended
            self._was_active, self._next_look = is_active, 0.0
        self.work.refresh(self._runs.records)

    def _look(self, _deadline: float) -> bool:
        """Read the runs again from time to time: they proceed, here and in other programs."""
        if self.frame.is_shown and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._runs.refresh(self._context.workspaces())
            if self._wants_machine:
                self._wants_machine = False
                self.machine.find()
        return False

    def _show_runs(self) -> None:
        self.recent.show(self._runs.records or ())
        self._refresh()

    def _arrange(self) -> None:
        width = self._body.winfo_width()
        is_wide = width >= self._context.theme.px(_WIDE_FROM_PX)
        if is_wide != self._is_wide:
            self._place(is_wide=is_wide)
        room = width - (self._context.theme.px(_SIDE_PX + PAD) if is_wide else 0)
        self.recent.fit(room)

    def _place(self, *, is_wide: bool) -> None:
        """Put this computer and the queue at the right, or below the runs in a narrow window."""
        self._is_wide = is_wide
        px = self._context.theme.px
        gap = (0, px(PAD))
        self._body.columnconfigure(1, minsize=px(_SIDE_PX) if is_wide else 0)
        for row, card in enumerate((self.work, self.recent)):
            tk.Grid.grid_configure(card, row=row, column=0, sticky="new", pady=gap)
        self._body.rowconfigure(1, weight=1)
        place = {"row": 0, "column": 1, "rowspan": 2} if is_wide else {"row": 2, "column": 0, "rowspan": 1}
        self._side.grid(sticky="new", padx=(px(PAD) if is_wide else 0, 0), **place)  # type: ignore[arg-type]
        for number, card in enumerate((self.machine, self.queue)):
            row, column = (number, 0) if is_wide else (0, number)
            left = px(PAD) if column else 0
            tk.Grid.grid_configure(card, row=row, column=column, sticky="nsew", padx=(left, 0), pady=gap)
        for column in (0, 1):
            is_used = not (is_wide and column)
            self._side.columnconfigure(column, weight=int(is_used), uniform="side" if is_used else "")


class WorkCard(Card):
    """The config in the window and what to do next; before the first run, the ways to begin."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme)
        self.buttons: dict[str, Button] = {}
        self._context = context
        self._starter = context.models.of(Starter)
        self._drawn: tuple[object, ...] = ()

    def refresh(self, records: tuple[RunRecord, ...] | None) -> None:
        """Draw what has changed; `records` are the newest runs, None until they are read."""
        context, form = self._context, self._context.form
        is_first = not (records or context.preferences.now.workspaces or form.is_changed or context.session.is_active)
        is_first = is_first and (form.source == Source() or form.source.name == DEMO)
        is_first = is_first and context.preferences.now.first_steps == HIDDEN  # no way is chosen yet
        work = work_of(context, self._starter)
        state = (is_first, work)
        if state != self._drawn:
            self._drawn = state
            for child in self.body.winfo_children():
                child.destroy()
            self.buttons = {}
            content = Panel(self.body, context.theme, "card")
            content.pack(fill="x", padx=(context.theme.px(12), 0))
            if is_first:
                self._draw_ways(content)
            else:
                self._draw_work(content, work)

    def _draw_ways(self, content: Panel) -> None:
        """Draw the ways next to each other, with what each is for."""
        theme, px = self._context.theme, self._context.theme.px
        Text(content, theme, _FIRST, role="title", on="card").grid(row=0, column=0, columnspan=len(WAYS), sticky="w")
        names = ("images", *(name for name in WAYS if name != "images"))
        for column, name in enumerate(names):
            content.columnconfigure(column, weight=1, uniform="ways")
            gap = (0, px(PAD) if column + 1 < len(names) else 0)
            style: ButtonStyle = "primary" if name == "images" else "plain"
            button = self._button(content, name, WAYS[name].label, partial(self.begin, name), style, height=40)
            tk.Grid.grid_configure(button, row=1, column=column, sticky="ew", padx=gap, pady=(px(14), 0))
            label = WrappedText(content, theme, WAYS[name].text, colour="muted", on="card")
            label.grid(row=2, column=column, sticky="new", padx=gap, pady=(px(6), 0))

    def _draw_work(self, content: Panel, work: Work) -> None:
        theme, px = self._context.theme, self._context.theme.px
        FittedText(content, theme, work.title, role="title", on="card").pack(fill="x")
        for line in work.what:
            FittedText(content, theme, line, colour="label", on="card").pack(fill="x", pady=(px(4), 0))
        if work.notes:
            WrappedText(content, theme, work.notes, colour="muted", on="card", role="small").pack(
                fill="x", pady=(px(4), 0)
            )
        WrappedText(content, theme, work.state, colour=work.colour, on="card").pack(fill="x", pady=(px(10), 0))
        row = Panel(content, theme, "card", height=1)
        row.pack(fill="x", pady=(px(12) if work.buttons else 0, 0))
        for number, press in enumerate(work.buttons):
            style: ButtonStyle = "plain" if number else "primary"
            run = partial(self._press, press)
            button = self._button(row, press.action or "show", press.label, run, style, height=36, width=104)
            button.pack(side="left", padx=(0, GAP))
        if self._context.session.is_active:
            return
        other = Panel(content, theme, "card")
        other.pack(fill="x", pady=(px(16), 0))
        Text(other, theme, "Or begin with something else", role="small", colour="muted", on="card").pack(anchor="w")
        for name, way in WAYS.items():
            button = self._button(other, name, way.label, partial(self.begin, name), "plain")
            button.pack(side="left", padx=(0, GAP), pady=(px(4), 0))
            self._context.tips.attach(button, lambda text=way.text: text)  # type: ignore[misc]

    def begin(self, name: str) -> None:
        """Begin one of the ways: on its page, or with its steps below the page."""
        note_beginning(self._context)
        self._context.preferences.change(first_steps=name if WAYS[name].steps else HIDDEN)
        if WAYS[name].action:
            self._context.actions.run(WAYS[name].action)

    def _press(self, press: CardButton) -> None:
        if press.path:
            self._context.navigation.go_to(press.path)
        else:
            self._context.actions.run(press.action)

    def _button(
        self,
        master: tk.Misc,
        name: str,
        label: str,
        run: Callable[[], object],
        style: ButtonStyle,
        *,
        height: int = CONTROL_HEIGHT,
        width: int = 0,
    ) -> Button:
        button = Button(master, self._context.theme, label, run, style=style, on="card", height=height, width=width)
        self.buttons[name] = button
        return button
