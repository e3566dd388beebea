"""The Choose page: a person as the reward. Shows the images of a prompt large; a click or a key chooses."""

from __future__ import annotations

import sys
import time
import tkinter as tk
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from modules.system.paths import from_root
from trainer.rollout_events import ChoicesWanted
from trainer.run_folder.choices import Request, choices_dir
from ui.features.choose.model import Choosing
from ui.forms.context import Context
from ui.forms.page import PageFrame
from ui.forms.setting_pages import PageSpec
from ui.widgets.choice_board import ChoiceBoard
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, Text
from ui.widgets.theme import GAP, PAD

_LOOK_SECONDS = 1.0
_SHORTCUT_MASK = 0x4 | (0x8 if sys.platform == "darwin" else 0)  # Control, Command
_NUM_DIGITS = 9
_NOTHING = "Nothing to choose at the moment."
_NOTHING_HELP = (
    "Images of a run that waits for your choice appear here.\nFor a run of another process, open its folder."
)
_DONE = "Thank you. The run continues, and its next images appear here."
DONE_STOPPED = "The run has stopped. Resumed, it uses your choices and continues."
STOPPED = "The run has stopped. It uses your choice once it is resumed."


class ChoosePage:
    """Asks the open requests of this window's run, or of a folder that the user opens."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.choosing = Choosing(context.pump.background)
        self._context = context
        self._next_look = 0.0
        self._choices: ChoicesWanted | None = None  # by this window's run
        self._is_over = False
        px = context.theme.px
        self.progress = Text(self.frame.buttons, context.theme, role="heading", colour="accent")
        self.progress.pack(side="left", padx=(0, px(GAP)))
        self.body = Panel(self.frame, context.theme)
        self.body.grid(row=1, column=0, sticky="nsew", padx=px(PAD + 4), pady=(0, px(PAD)))
        self.body.columnconfigure(0, weight=1)
        self.body.rowconfigure(2, weight=1)
        self._add_question()
        self._add_nothing()
        self._add_footer()
        self._bind_keys()
        self.choosing.changed.subscribe(self._draw_soon)
        context.session.changed.subscribe(self._follow_session)
        context.pump.add_source(self._look)
        self._follow_session()
        self._draw()

    def on_show(self) -> None:
        """Move the focus here, and look for requests."""
        self._follow_session()
        self._next_look = 0.0
        self._draw_soon()
        self.frame.focus_set()

    def open_folder(self) -> None:
        """Choose for a run of another process: ask for its folder."""
        start = from_root(self._context.form.config.general.workspace_dir)
        folder = self._context.interaction.ask_folder("The folder of a run", start)
        if folder is None:
            return
        run_dir = folder.parent if folder.name == choices_dir(folder).name else folder
        if not choices_dir(run_dir).is_dir():
            self._context.notify(f"{folder.name} has no choices to make.")
            return
        self.choosing.open(run_dir)
        self.frame.focus_set()

    def _add_question(self) -> None:
        context, px = self._context, self._context.theme.px
        self.prompt = Text(self.body, context.theme, role="heading")
        self.prompt.grid(row=0, column=0, sticky="ew")
        self.prompt.bind("<Configure>", lambda e: self.prompt.configure(wraplength=max(100, e.width)))
        self.question = Text(self.body, context.theme, colour="accent")
        self.question.grid(row=1, column=0, sticky="w", pady=(px(6), px(10)))
        self.board = ChoiceBoard(self.body, context.theme, context.pump, self._pick_image)
        self.board.grid(row=2, column=0, sticky="nsew")

    def _add_nothing(self) -> None:
        context, px = self._context, self._context.theme.px
        self.nothing = Panel(self.body, context.theme)
        self.nothing.grid(row=2, column=0)
        self.nothing_title = Text(self.nothing, context.theme, _NOTHING, role="heading", colour="label")
        self.nothing_title.pack()
        Text(self.nothing, context.theme, _NOTHING_HELP, colour="muted", justify="center").pack(pady=px(12))
        self.open_button = Button(self.nothing, context.theme, "Open a run's folder…", self.open_folder)
        self.open_button.pack()

    def _add_footer(self) -> None:
        context, px = self._context, self._context.theme.px
        self.footer = Panel(self.body, context.theme)
        self.footer.grid(row=3, column=0, sticky="ew", pady=(px(10), 0))
        self.buttons: dict[str, Button] = {}
        for name, label, press in (
            ("tie", "Tie  (T)", self.choosing.tie),
            ("skip", "Skip  (S)", self.choosing.skip),
            ("undo", "Undo  (U)", self.choosing.undo),
        ):
            self.buttons[name] = self._keyless_button(label, press)
        for name, tip in _TIPS.items():
            context.tips.attach(self.buttons[name], lambda tip=tip: tip)  # type: ignore[misc]
        self.message = Text(self.footer, context.theme, colour="muted")
        self.message.pack(side="left", padx=(px(GAP), 0))
        self.keys_text = Text(self.footer, context.theme, colour="faint", role="small")
        self.keys_text.pack(side="right")

    def _keyless_button(self, label: str, press: Callable[[], object]) -> Button:
        """Add a button that leaves the keyboard to the page: the page's keys press all of them."""
        button = Button(self.footer, self._context.theme, label, press, width=96)
        button._canvas.configure(takefocus=False)
        button.pack(side="left", padx=(0, self._context.theme.px(GAP)))
        return button

    def _bind_keys(self) -> None:
        keys: dict[str, Callable[[], object]] = {
            **{f"<Key-{n + 1}>": lambda n=n: self.choosing.pick(n) for n in range(_NUM_DIGITS)},  # type: ignore[misc]
            **{f"<KP_{n + 1}>": lambda n=n: self.choosing.pick(n) for n in range(_NUM_DIGITS)},  # type: ignore[misc]
            "<Left>": lambda: self._pick_side(0),
            "<Right>": lambda: self._pick_side(1),
        }
        rows: tuple[tuple[tuple[str, ...], Callable[[], object]], ...] = (
            (("<t>", "<T>", "<Down>"), self.choosing.tie),
            (("<s>", "<S>", "<space>"), self.choosing.skip),
            (("<u>", "<U>", "<BackSpace>"), self.choosing.undo),
        )
        for sequences, press in rows:
            keys.update(dict.fromkeys(sequences, press))
        # On the window: Tk may leave the focus there while a page is shown for the first time.
        for sequence, press in keys.items():
            self._context.root.bind(sequence, partial(self._key, press), add="+")

    def _key(self, press: Callable[[], object], event: tk.Event[Any]) -> str | None:
        """Run a plain key unless a control has the focus; shortcuts such as Ctrl+S belong to the window."""
        is_for_page = self.frame.is_shown and event.widget in (self._context.root, self.frame)
        if not is_for_page or int(event.state) & _SHORTCUT_MASK:
            return None
        self._when_seen(press)
        return "break"

    def _when_seen(self, press: Callable[[], object]) -> None:
        """Do what the user asks once the images can be seen: a key held down must not answer unseen ones."""
        if press == self.choosing.undo or self.board.is_loaded:
            press()

    def _pick_image(self, number: int) -> None:
        self.frame.focus_set()
        self._when_seen(lambda: self.choosing.pick(number))

    def _pick_side(self, number: int) -> None:
        request = self.choosing.request
        if request is not None and len(request.images) == 2:
            self.choosing.pick(number)

    def _follow_session(self) -> None:
        """Show the window's own run when it waits for a choice, and read again when it continues."""
        state = self._context.session.state
        choices = None if state.is_over else state.choices
        if choices is self._choices and state.is_over == self._is_over:
            return
        self._choices, self._is_over = choices, state.is_over
        if choices is not None and state.started is not None:
            self.choosing.open(Path(state.started.run_dir))
        elif self._has_stopped and state.backup is None:
            self.choosing.open(None)  # nothing will ever use these choices
        else:
            self.choosing.refresh()
        self._draw_soon()

    @property
    def _has_stopped(self) -> bool:
        """Whether the choices are those of the window's run, and it has stopped."""
        state = self._context.session.state
        return state.is_over and state.started is not None and Path(state.started.run_dir) == self.choosing.run_dir

    def _look(self, _deadline: float) -> bool:
        """Read the folder every second while the page is shown: other programs may also ask or answer."""
        now = time.perf_counter()
        if self.frame.is_shown and now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self.choosing.refresh()
        return False

    def _draw_soon(self) -> None:
        if self.frame.is_shown:
            self._context.pump.redraw_soon(self, self._draw)

    def _draw(self) -> None:
        choosing, request = self.choosing, self.choosing.request
        self.message.set_text(choosing.message)
        self.buttons["undo"].set_enabled(choosing.can_undo)
        for name in ("tie", "skip"):
            self.buttons[name].set_enabled(request is not None)
        if request is None:
            self._draw_nothing()
            return
        position, total = choosing.position
        self.progress.set_text(f"{position:,} of {total:,}")
        self.prompt.set_text(" ".join(request.prompt.split()) or "(no prompt)")
        question = _question(len(request.images), needs_worst=choosing.needs_worst)
        self.question.set_text(f"{question} {STOPPED}" if self._has_stopped else question)
        self.keys_text.set_text(_describe_keys(len(request.images)))
        ahead = choosing.following.images if choosing.following else ()
        self.board.show(request.images, _labels(request, choosing.best), marked=choosing.best, ahead=ahead)
        self.nothing.grid_remove()
        self.board.grid()
        self.footer.grid()

    def _draw_nothing(self) -> None:
        is_done = self.choosing.can_undo
        for text in (self.progress, self.prompt, self.question, self.keys_text):
            text.set_text("")
        done = DONE_STOPPED if self._has_stopped else _DONE
        self.nothing_title.set_text(done if is_done else _NOTHING)
        self.board.show((), ())
        self.board.grid_remove()
        self.nothing.grid()
        if is_done:
            self.footer.grid()
        else:
            self.footer.grid_remove()


BETTER_OF_TWO = "Which image is better for this prompt?"
BEST = "Choose the best image for this prompt, then the worst."
WORST = "Now choose the worst image."
_TIPS = {
    "tie": "No image is better than the others (T or Down)",
    "skip": "Leave these images out (S or Space)",
    "undo": "Take back the last choice, unless the run has used it (U or Backspace)",
}


def _question(num_images: int, *, needs_worst: bool) -> str:
    if num_images == 2:
        return BETTER_OF_TWO
    return WORST if needs_worst else BEST


def _labels(request: Request, best: int | None) -> list[str]:
    names = ["←   1", "2   →"] if len(request.images) == 2 else [str(n + 1) for n in range(len(request.images))]
    return [f"{name}   best" if number == best else name for number, name in enumerate(names)]


def _describe_keys(num_images: int) -> str:
    return "Click the better image, or press ← or →." if num_images == 2 else f"Click, or press 1 to {num_images}."
