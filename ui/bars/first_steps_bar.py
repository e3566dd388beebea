"""The card of a first start: four ways to begin, then the steps of the chosen one."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial

from ui.context import Context
from ui.first_steps import CHOOSING, HIDDEN, WAYS, Progress, Step, Way, current_step
from ui.run.offers import CRASHED
from ui.theme import GAP, PAD
from ui.widgets.card import Card
from ui.widgets.controls import Button, ButtonStyle
from ui.widgets.panel import Panel, Text, WrappedText

_DONE = "You have been through all of it. The Window menu at the bottom left brings this card back."


class FirstStepsBar(Panel):
    """Shown below the top bar until it is closed; the preferences hold what it shows."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "window")
        self.buttons: dict[str, Button] = {}
        self._context = context
        self._drawn: tuple[object, ...] = ()
        for signal in (
            context.preferences.changed,
            context.form.changed,
            context.session.changed,
            context.starter.changed,
            context.field_problems.changed,
            context.notices.changed,
        ):
            signal.subscribe(lambda: context.pump.redraw_soon(self, self.refresh))
        context.navigation.page_wanted.subscribe(lambda _page: context.pump.redraw_soon(self, self.refresh))

    def refresh(self) -> None:
        """Show the ways, or the steps of the chosen one; draw only what has changed."""
        state = self._context.preferences.now.first_steps
        way = WAYS.get(state)
        if state == HIDDEN or (way is None and state != CHOOSING):
            self._drawn = ()
            self.grid_remove()
            return
        current = current_step(way, self._progress()) if way is not None else 0
        context = self._context
        wanted = (state, current, context.starter.resumable is not None, context.navigation.page, *self._ways())
        if wanted != self._drawn:
            self._drawn = wanted
            self._draw(way, current)
        self.grid()

    def choose(self, name: str) -> None:
        """Begin one of the ways."""
        way = WAYS[name]
        self._context.preferences.change(first_steps=name if way.steps else HIDDEN)
        if way.action:
            self._context.actions.run(way.action)

    def close(self) -> None:
        """Hide the card until it is asked for."""
        self._context.preferences.change(first_steps=HIDDEN)

    def _draw(self, way: Way | None, current: int) -> None:
        for child in self.winfo_children():
            child.destroy()
        self.buttons = {}
        px = self._context.theme.px
        card = Card(self, self._context.theme)
        tk.Pack.pack_configure(card, fill="x", padx=px(PAD + 4), pady=(px(10), 0))
        body = Panel(card.body, self._context.theme, "card")
        body.pack(fill="x", padx=(px(12), 0))
        if way is None:
            self._draw_ways(body)
        else:
            self._draw_steps(body, way, current)

    def _draw_ways(self, body: Panel) -> None:
        theme, px = self._context.theme, self._context.theme.px
        header = Panel(body, theme, "card")
        header.grid(row=0, column=0, columnspan=len(WAYS), sticky="ew", pady=(0, px(8)))
        Text(header, theme, "How would you like to begin?", role="heading", on="card").pack(side="left")
        self._add_button(header, "close", "Not now", self.close).pack(side="right")
        ways = self._ways()
        for column, (name, way) in enumerate(ways.items()):
            body.columnconfigure(column, weight=1, uniform="ways")
            gap = (0, px(PAD) if column + 1 < len(ways) else 0)
            button = self._add_button(body, name, way.label, partial(self.choose, name), is_primary=column == 0)
            tk.Grid.grid_configure(button, row=1, column=column, sticky="ew", padx=gap)
            is_possible = not way.action or self._context.actions[way.action].is_enabled()
            button.set_enabled(is_possible)
            text = way.text if is_possible else "There is no run to continue yet."
            words = WrappedText(body, theme, text, role="small", colour="muted", on="card")
            words.grid(row=2, column=column, sticky="new", padx=gap, pady=(px(4), 0))

    def _draw_steps(self, body: Panel, way: Way, current: int) -> None:
        theme, px = self._context.theme, self._context.theme.px
        body.columnconfigure(0, weight=1)
        header = Panel(body, theme, "card")
        header.grid(row=0, column=0, sticky="ew")
        Text(header, theme, way.label, role="heading", on="card").pack(side="left", padx=(0, px(PAD)))
        for number, step in enumerate(way.steps):
            sign = "✓" if number < current else f"{number + 1}"
            colour = "good" if number < current else "accent" if number == current else "faint"
            Text(header, theme, f"{sign}  {step.title}", colour=colour, on="card").pack(side="left", padx=(0, px(14)))
        step_now = way.steps[current] if current < len(way.steps) else None
        words = WrappedText(body, theme, step_now.text if step_now else _DONE, colour="label", on="card")
        words.grid(row=1, column=0, sticky="ew", pady=(px(4), 0))
        buttons = Panel(body, theme, "card")
        buttons.grid(row=0, column=1, rowspan=2, sticky="e", padx=(px(PAD), 0))
        if step_now is not None and step_now.page != self._context.navigation.page:
            go = self._add_button(buttons, "go", step_now.button, partial(self._go, step_now), is_primary=True)
            go.pack(side="left")
        self._add_button(buttons, "back", "Other ways", self._back).pack(side="left", padx=(GAP, 0))
        self._add_button(buttons, "close", "Close", self.close).pack(side="left", padx=(GAP, 0))

    def _ways(self) -> dict[str, Way]:
        """Return the ways to offer: not the last run, where a notice offers to resume it."""
        is_offered = any(notice.key == CRASHED for notice in self._context.notices.items)
        return {name: way for name, way in WAYS.items() if not (is_offered and way.action == "resume")}

    def _add_button(
        self, master: tk.Misc, name: str, label: str, run: Callable[[], object], *, is_primary: bool = False
    ) -> Button:
        style: ButtonStyle = "primary" if is_primary else "plain"
        button = Button(master, self._context.theme, label, run, style=style, on="card")
        self.buttons[name] = button
        return button

    def _go(self, step: Step) -> None:
        if step.action:
            self._context.actions.run(step.action)
        else:
            self._context.navigation.open(step.page)

    def _back(self) -> None:
        self._context.preferences.change(first_steps=CHOOSING)

    def _progress(self) -> Progress:
        context, state = self._context, self._context.session.state
        return Progress(
            context.form.config,
            context.form.source,
            context.form.baseline,
            num_errors=len(context.field_problems.errors),
            has_started=context.session.is_active or state.started is not None,
            has_finished=state.finished is not None,
        )
