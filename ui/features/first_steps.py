"""The first minute: three ways to begin, and the card with the steps of the chosen one; a line in a low window."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from modules.config.presets import DEMO
from modules.config.usage import missing_data
from ui.forms.context import Context
from ui.forms.model import Source
from ui.forms.setting_pages import HOME
from ui.widgets.card import Card
from ui.widgets.controls import Button, ButtonStyle
from ui.widgets.fitted_text import FittedText
from ui.widgets.panel import Panel, Text, WrappedText, rule
from ui.widgets.theme import CONTROL_HEIGHT, GAP, PAD, is_low

HIDDEN = ""  # the state without the name of a way


class Progress(NamedTuple):
    """The user's progress so far: what is loaded, how many errors it has, whether its images are missing, and whether a
    run has started and ended.
    """

    source: Source
    num_errors: int = 0
    lacks_images: bool = False
    has_started: bool = False
    has_finished: bool = False


class Step(NamedTuple):
    """A step: its name, what to do, and a button that runs an action or opens a page."""

    title: str
    text: str
    button: str
    is_done: Callable[[Progress], bool]
    action: str = ""
    page: str = ""


class Way(NamedTuple):
    """A way to begin: its label, what it is for, the action that it begins with, and the steps that follow."""

    label: str
    text: str
    steps: tuple[Step, ...] = ()
    action: str = ""


def _is_demo(progress: Progress) -> bool:
    return progress.source.name == DEMO


def _has_config(progress: Progress) -> bool:
    return progress.source.kind == "file" or (progress.source.kind == "none" and progress.source != Source())


def _start(text: str) -> Step:
    return Step("Start", text, "Start", lambda p: p.has_started, action="start")


_WATCH = Step(
    "Watch",
    "The Run page shows the loss and the samples while it trains. You can stop at any time and resume later.",
    "Open the Run page",
    lambda p: p.has_finished,
    page="run",
)

WAYS: Mapping[str, Way] = {
    "demo": Way(
        "Try the demo",
        "Trains a tiny model on a dozen images in a minute or two. No download, no GPU.",
        (
            Step("Load the demo", "Everything is set in the preset #demo.", "Load it", _is_demo, action="demo"),
            _start("The settings and images are ready. Press Start."),
            _WATCH,
        ),
        action="demo",
    ),
    "images": Way(
        "Train my images",
        "A LoRA of a person, an object or a style, from a folder of your images.",
        action="page_simple",
    ),
    "config": Way(
        "Open a config",
        "A file of OneTrainer, kohya or ai-toolkit, or the settings in a LoRA file.",
        (
            Step("Open", "Choose the file; it is converted and stays unchanged.", "Open…", _has_config, action="load"),
            Step(
                "Check",
                "Something has to be changed first. Check again lists what is wrong, and what to do.",
                "Check again",
                lambda p: p.num_errors == 0,
                action="start",
            ),
            Step(
                "Images",
                "The config names no folder of images. Add yours.",
                "Open Concepts",
                lambda p: not p.lacks_images,
                page="concepts",
            ),
            _start("No setting has an error. Start checks the images and the memory."),
            _WATCH,
        ),
        action="load",
    ),
}


def note_beginning(context: Context) -> None:
    """Begin a way anew: it is not done, and the run that is shown now does not count as its own."""
    _memory(context).update(started=context.session.started, done=None)


def _memory(context: Context) -> dict[str, object]:
    """Return the run before the way, and the way whose steps have all been done."""
    return context.view_state.of("first steps", dict[str, object])


def current_step(way: Way, progress: Progress) -> int:
    """Return the number of the first step that is not done; the number of all steps if everything is done."""
    return next((i for i, step in enumerate(way.steps) if not step.is_done(progress)), len(way.steps))


_DONE = "You have been through all of it. Home has these ways to begin again."
_LOW_BUTTON = 24
_MIN_TEXT = 120  # of a line, in design pixels, next to its buttons


class FirstStepsBar(Panel):
    """Shown below the page until it is closed; the preferences hold what it shows."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "window")
        self.buttons: dict[str, Button] = {}
        self._context = context
        self._drawn_state: tuple[object, ...] = ()
        for signal in (
            context.preferences.changed,
            context.form.changed,
            context.session.changed,
            context.starter.changed,
            context.field_problems.changed,
        ):
            signal.subscribe(self._soon)
        context.navigation.page_wanted.subscribe(lambda _page: self._soon())

    def refresh(self) -> None:
        """Show the steps of the chosen way; draw only what has changed."""
        context = self._context
        state = context.preferences.now.first_steps
        way = WAYS.get(state)
        if way is None or not way.steps or self._is_out_of_place():
            self._drawn_state = ()
            self.grid_remove()
            return
        progress = self._progress()
        current = current_step(way, progress)
        step = way.steps[current] if current < len(way.steps) else None
        memory = _memory(context)
        if step is not None and memory.get("done") == state:  # something else has been loaded since
            self._context.pump.redraw_soon((self, "close"), self.close)
            self.grid_remove()
            return
        memory["done"] = state if step is None else memory.get("done")
        text = step.text if step is not None else _DONE
        low = step is None or is_low(context.root.winfo_height(), context.theme)  # nothing is left to do
        state_to_draw = (state, current, text, low, context.navigation.page)
        if state_to_draw != self._drawn_state:
            self._drawn_state = state_to_draw
            self._draw(way, current, text, is_compact=low)
        self.grid()

    def _soon(self) -> None:
        self._context.pump.redraw_soon(self, self.refresh)

    def _is_out_of_place(self) -> bool:
        """Return whether a run is active: the last step of a way, to watch it, is for the Run page."""
        return self._context.session.is_active and self._context.navigation.page != "run"

    def close(self) -> None:
        """Hide the card until a way is chosen on Home."""
        self._context.preferences.change(first_steps=HIDDEN)

    def _draw(self, way: Way, current: int, text: str, *, is_compact: bool) -> None:
        for child in self.winfo_children():
            child.destroy()
        self.buttons = {}
        px = self._context.theme.px
        if is_compact:
            rule(self, self._context.theme).pack(fill="x")  # a card behind it has the same colour
            line = Panel(self, self._context.theme, "card")
            line.pack(fill="x", padx=px(PAD + 4), pady=(0, px(4)))
            self._draw_line(line, way, current, text)
            return
        card = Card(self, self._context.theme)
        tk.Pack.pack_configure(card, fill="x", padx=px(PAD + 4), pady=(px(4), px(10)))
        body = Panel(card.body, self._context.theme, "card")
        body.pack(fill="x", padx=(px(12), 0))
        self._draw_steps(body, way, current, text)

    def _draw_line(self, line: Panel, way: Way, current: int, text: str) -> None:
        """Draw it in a line for a low window, or in two if that is also narrow; the tooltips have the rest."""
        theme, px = self._context.theme, self._context.theme.px
        words, buttons = Panel(line, theme, "card"), Panel(line, theme, "card")
        line.columnconfigure(0, weight=1)
        words.grid(row=0, column=0, sticky="ew")
        self._add_step_buttons(buttons, way, current, height=_LOW_BUTTON)
        is_over = current >= len(way.steps)
        title = way.label if is_over else f"{current + 1} of {len(way.steps)}  {way.steps[current].title}"
        heading = Text(words, theme, title, role="strong", on="card")
        heading.pack(side="left", padx=(px(12), px(GAP)), pady=px(4))
        label = FittedText(words, theme, text, colour="label", on="card")
        label.pack(side="left", fill="x", expand=True, padx=(0, px(GAP)))
        self._context.tips.attach(label, lambda: label.hidden_text)

        def fit(width: int) -> None:
            needed = heading.winfo_reqwidth() + px(_MIN_TEXT) + buttons.winfo_reqwidth()
            row, column = (1, 0) if needed > width else (0, 1)
            buttons.grid(row=row, column=column, sticky="e", padx=px(GAP), pady=(0 if row else px(4), px(4)))

        line.bind("<Configure>", lambda event: fit(event.width))
        fit(self.winfo_width())

    def _draw_steps(self, body: Panel, way: Way, current: int, text: str) -> None:
        theme, px = self._context.theme, self._context.theme.px
        body.columnconfigure(0, weight=1)
        header = Panel(body, theme, "card")
        header.grid(row=0, column=0, columnspan=2, sticky="ew")
        Text(header, theme, way.label, role="heading", on="card").pack(side="left", padx=(0, px(PAD)))
        for number, step in enumerate(way.steps):
            sign = "✓" if number < current else f"{number + 1}"
            colour = "good" if number < current else "accent" if number == current else "faint"
            Text(header, theme, f"{sign}  {step.title}", colour=colour, on="card").pack(side="left", padx=(0, px(14)))
        label = WrappedText(body, theme, text, colour="label", on="card")
        label.grid(row=1, column=0, sticky="ew", pady=(px(4), 0))
        buttons = Panel(body, theme, "card")
        buttons.grid(row=1, column=1, sticky="e", padx=(px(PAD), 0))
        self._add_step_buttons(buttons, way, current)

    def _add_step_buttons(self, box: Panel, way: Way, current: int, *, height: int = CONTROL_HEIGHT) -> None:
        step = way.steps[current] if current < len(way.steps) else None
        rows: list[tuple[str, str, Callable[[], object], ButtonStyle]] = [
            ("back", "Other ways", self._back, "plain"),
            ("close", "Close", self.close, "plain"),
        ]
        is_start = step is not None and step.button == "Start"  # which the bottom bar has
        if step is not None and not is_start and step.page != self._context.navigation.page:
            rows.insert(0, ("go", step.button, partial(self._go, step), "primary"))
        for name, label, run, style in rows:
            button = Button(box, self._context.theme, label, run, style=style, on="card", height=height, rank=2)
            button.pack(side="left", padx=(GAP, 0))
            self.buttons[name] = button

    def _go(self, step: Step) -> None:
        if step.action:
            self._context.actions.run(step.action)
        else:
            self._context.navigation.open(step.page)

    def _back(self) -> None:
        self.close()
        self._context.navigation.open(HOME)

    def _progress(self) -> Progress:
        context, state = self._context, self._context.session.state
        has_run = state.started is not None and state.started != _memory(context).get("started")
        report = context.starter.current_report
        return Progress(
            context.form.source,
            num_errors=len(context.field_problems.errors) + (len(report.errors) if report is not None else 0),
            lacks_images=missing_data(context.form.config) is not None,
            has_started=context.session.is_active or has_run,
            has_finished=has_run and state.end is not None and state.end.status.is_complete,
        )
