"""A blind vote between checkpoints: rounds of their images without names, large and side by side, and its result."""

from __future__ import annotations

import random
import tkinter as tk
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from modules.system.problem import count
from ui.features.checkpoints.model import CheckpointTable, Row
from ui.forms.context import Context
from ui.widgets.choice_board import ChoiceBoard
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, Text
from ui.widgets.theme import GAP, PAD

FEWEST, MOST = 2, 4


@dataclass(frozen=True, slots=True)
class Round:
    """A prompt, and the images of all rows for it: `order` has the row of each image."""

    prompt: str
    images: tuple[Path, ...]
    order: tuple[int, ...]


class BlindVote:
    """The rounds of a vote and the answers so far."""

    def __init__(self, table: CheckpointTable, rows: Sequence[Row], strength: float, *, seed: int) -> None:
        """`seed` decides the order of the rounds, and of the images in each."""
        self.rows = tuple(rows)
        self.rounds = _rounds(table, rows, strength, random.Random(seed))
        self._answers: list[int | None] = []  # the row of each round; None for a tie or a skipped round
        self._is_tie: list[bool] = []

    @property
    def round(self) -> Round | None:
        """The round to answer now; None after the last one."""
        number = len(self._answers)
        return self.rounds[number] if number < len(self.rounds) else None

    @property
    def following(self) -> Round | None:
        """The round after it, whose images can be loaded ahead."""
        number = len(self._answers) + 1
        return self.rounds[number] if number < len(self.rounds) else None

    @property
    def can_undo(self) -> bool:
        """Whether there is an answer to take back."""
        return bool(self._answers)

    @property
    def tally(self) -> str:
        """How far the vote is, without the names."""
        votes = sum(answer is not None for answer in self._answers)
        ties = sum(self._is_tie)
        place = min(len(self._answers) + 1, len(self.rounds))
        return f"{place} of {len(self.rounds)}: {count(votes, 'vote')}, {count(ties, 'tie')}"

    @property
    def votes(self) -> dict[Row, int]:
        """The votes for each row, the most first."""
        counts = Counter(answer for answer in self._answers if answer is not None)
        ordered = sorted(range(len(self.rows)), key=lambda n: -counts[n])
        return {self.rows[n]: counts[n] for n in ordered}

    @property
    def winner(self) -> Row | None:
        """The row with the most votes; None without a single one."""
        (first, most), (_, second), *_ = self.votes.items()
        return first if most > second else None

    def pick(self, number: int) -> None:
        """Choose an image of the round as the best."""
        if self.round is not None and number in range(len(self.round.images)):
            self._answer(self.round.order[number], is_tie=False)

    def tie(self) -> None:
        """Answer that no image is better."""
        self._answer(None, is_tie=True)

    def skip(self) -> None:
        """Leave the round out."""
        self._answer(None, is_tie=False)

    def undo(self) -> None:
        """Take back the last answer."""
        if self._answers:
            self._answers.pop()
            self._is_tie.pop()

    def _answer(self, row: int | None, *, is_tie: bool) -> None:
        if self.round is not None:
            self._answers.append(row)
            self._is_tie.append(is_tie)


def _rounds(
    table: CheckpointTable, rows: Sequence[Row], strength: float, generator: random.Random
) -> tuple[Round, ...]:
    """Return a round for each column of which all rows have an image."""
    rounds = []
    for column in table.columns:
        images = [table.image(row, column, strength) for row in rows]
        present = [image for image in images if image is not None]
        if len(present) == len(rows):
            order = generator.sample(range(len(rows)), len(rows))
            rounds.append(Round(column.prompt, tuple(present[n] for n in order), tuple(order)))
    generator.shuffle(rounds)
    return tuple(rounds)


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
