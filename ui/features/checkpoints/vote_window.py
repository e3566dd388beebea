"""The window of a blind vote: images large and side by side, then what was voted for."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import Any

from modules.system.problem import count
from ui.features.checkpoints.model import Row
from ui.features.checkpoints.vote import BlindVote
from ui.forms.context import Context
from ui.widgets.choice_board import ChoiceBoard
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, Text
from ui.widgets.theme import GAP, PAD

_QUESTION = "Which image is the best for this prompt? Their order changes with each prompt."
_TIE_TEXT = "No checkpoint has more votes than all others."


class VoteWindow(Window):
    """Asks the rounds of a vote; `on_use(row)` is called if the winner is to be the result."""

    is_single = True

    def __init__(self, context: Context, vote: BlindVote, on_use: Callable[[Row], object]) -> None:
        super().__init__(context.root, context.theme, "Blind vote")
        self.vote = vote
        self.is_revealed = False
        self.buttons: dict[str, Button] = {}
        self._context, self._on_use = context, on_use
        px = context.theme.px
        self._add_footer()
        self.prompt = Text(self, context.theme, role="heading")
        self.prompt.pack(fill="x", padx=px(PAD), pady=(px(PAD), px(4)))
        self.prompt.bind("<Configure>", lambda e: self.prompt.configure(wraplength=max(100, e.width)))
        self.question = Text(self, context.theme, _QUESTION, colour="accent")
        self.question.pack(fill="x", padx=px(PAD), pady=(0, px(8)))
        self.board = ChoiceBoard(self, context.theme, context.pump, self.pick)
        self.board.pack(fill="both", expand=True, padx=px(PAD))
        self.result = Text(self, context.theme, role="heading", justify="center", anchor="center")
        self._bind_keys()
        self.appear(1040, 700)
        self.focus_set()
        self._follow()

    def pick(self, number: int) -> None:
        """Vote for an image, once all can be seen: a key held down must not answer unseen ones."""
        self.focus_set()
        if not self.is_revealed and self.board.is_loaded:
            self.vote.pick(number)
            self._follow()

    def press(self, name: str) -> None:
        """Tie, skip or undo."""
        if self.is_revealed or (name != "undo" and not self.board.is_loaded):
            return
        {"tie": self.vote.tie, "skip": self.vote.skip, "undo": self.vote.undo}[name]()
        self._follow()

    def reveal(self) -> None:
        """End the vote and show which checkpoint has how many votes."""
        self.is_revealed = True
        self._follow()

    def use(self) -> None:
        """Make the winner the result, and close."""
        winner = self.vote.winner
        self.close()
        if winner is not None:
            self._on_use(winner)

    def _add_footer(self) -> None:
        context, px = self._context, self.theme.px
        footer = Panel(self, context.theme)
        footer.pack(side="bottom", fill="x", padx=px(PAD), pady=px(12))
        labels = {"tie": "Tie  (T)", "skip": "Skip  (S)", "undo": "Undo  (U)"}
        for name, label in labels.items():
            self.buttons[name] = self._button(footer, label, partial(self.press, name), "left")
        self.tally = Text(footer, context.theme, colour="muted")
        self.tally.pack(side="left", padx=(px(GAP), 0))
        self.buttons["close"] = self._button(footer, "Close", self.close, "right")
        self.buttons["reveal"] = self._button(footer, "Reveal", self.reveal, "right")
        self.buttons["use"] = Button(footer, context.theme, "Use it", self.use, style="primary")

    def _button(self, footer: Panel, label: str, press: Callable[[], object], side: Any) -> Button:
        """Add a button that leaves the keyboard to the window, whose keys answer."""
        button = Button(footer, self.theme, label, press, width=92)
        button._canvas.configure(takefocus=False)
        button.pack(side=side, padx=(0, GAP) if side == "left" else (GAP, 0))
        return button

    def _bind_keys(self) -> None:
        keys: dict[str, Callable[[], object]] = {
            **{f"<Key-{n + 1}>": partial(self.pick, n) for n in range(len(self.vote.rows))},
            **{f"<KP_{n + 1}>": partial(self.pick, n) for n in range(len(self.vote.rows))},
            **dict.fromkeys(("<t>", "<T>", "<Down>"), partial(self.press, "tie")),
            **dict.fromkeys(("<s>", "<S>", "<space>"), partial(self.press, "skip")),
            **dict.fromkeys(("<u>", "<U>", "<BackSpace>"), partial(self.press, "undo")),
        }
        if len(self.vote.rows) == 2:
            keys |= {"<Left>": partial(self.pick, 0), "<Right>": partial(self.pick, 1)}
        for sequence, press in keys.items():
            self.bind(sequence, partial(_press_key, press))

    def _follow(self) -> None:
        vote_round = self.vote.round
        if vote_round is None:
            self.is_revealed = True
        if self.is_revealed:
            self._show_result()
            return
        assert vote_round is not None
        self.tally.set_text(self.vote.tally)
        self.buttons["undo"].set_enabled(self.vote.can_undo)
        self.prompt.set_text(" ".join(vote_round.prompt.split()) or "(no prompt)")
        following = self.vote.following
        numbers = range(len(vote_round.images))
        labels = ["←   1", "2   →"] if len(numbers) == 2 else [str(n + 1) for n in numbers]
        self.board.show(vote_round.images, labels, ahead=following.images if following else ())

    def _show_result(self) -> None:
        px, winner = self.theme.px, self.vote.winner
        self.board.show((), ())
        for widget in (self.board, self.question):
            widget.pack_forget()
        for name in ("tie", "skip", "undo", "reveal"):
            self.buttons[name].pack_forget()
        self.tally.set_text("")
        self.prompt.set_text(f"{winner.label} has the most votes." if winner else _TIE_TEXT)
        lines = [f"{row.label}: {count(votes, 'vote')}" for row, votes in self.vote.votes.items()]
        self.result.set_text("\n".join(lines))
        self.result.pack(expand=True, padx=px(PAD))
        if winner is not None:
            self.buttons["use"].configure(text=f"Use {winner.checkpoint.label.lower()}")
            self.buttons["use"].pack(side="right")


def _press_key(press: Callable[[], object], _event: tk.Event[Any]) -> str:
    press()
    return "break"
