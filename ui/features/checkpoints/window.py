"""The window that compares the checkpoints of runs: their images, a blind vote, and the choice of one as the result."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from modules.system.errors import DarkroomError
from ui.features.checkpoints.grid import CheckpointGrid, Place
from ui.features.checkpoints.model import CheckpointSession, Row
from ui.features.checkpoints.vote import FEWEST, MOST, BlindVote, VoteWindow
from ui.forms.context import Context
from ui.forms.section_form import SectionForm
from ui.loop.interaction import Answer
from ui.widgets.card import Card
from ui.widgets.controls import Button, Choice
from ui.widgets.dialog import Window
from ui.widgets.image_grid import Tile
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.progress import ThinBar
from ui.widgets.textarea import TextArea
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

_READ_SECONDS = 1.0
_EMPTY = "Press Compare to sample every checkpoint of the run with the same prompts and seeds."
_PROMPTS = "The sample prompts of the run, or others, one a line"
_HIDDEN = ("runs", "prompts")
_HINT = f"Click on a checkpoint to choose it: one to use, {FEWEST} to {MOST} for a blind vote."


class CheckpointsWindow(Window):
    """Samples the checkpoints of runs in a process of its own; closing the window stops it, the images stay."""

    def __init__(self, context: Context, run_dirs: Sequence[Path], session: CheckpointSession | None = None) -> None:
        super().__init__(context.root, context.theme, "Checkpoints")
        self._context = context
        may_start = lambda: context.session.stage == "idle"  # noqa: E731
        self.session = session or CheckpointSession(run_dirs, context.pump.background, may_start=may_start)
        self.chosen: tuple[Row, ...] = ()
        self.strength = TextVar(master=self, value="1")
        self.buttons: dict[str, Button] = {}
        self._has_form = True
        self._was_empty = True
        self._build()
        self.drain(context.pump, self.session.runner.drain)
        self.at_close(
            self.session.changed.subscribe(self._soon),
            self.session.close,
            lambda: context.pump.forget(self),
            lambda: context.pump.forget((self, "read")),
        )
        self.session.result_changed.subscribe(context.session.changed)  # its pages no longer offer another one
        self._follow()
        self.appear(1180, 760)
        self.session.look()

    # -- actions

    def start(self) -> None:
        """Sample what is not there yet, with the settings of the form."""
        try:
            prompts = tuple(line.strip() for line in self.prompts.get().splitlines() if line.strip())
            self.session.start(self.form.settings.model_copy(update={"prompts": prompts}))
        except DarkroomError as error:
            self._context.notify(str(error))

    def toggle_form(self) -> None:
        """Show or hide the settings."""
        self._has_form = not self._has_form
        self._fit_form()

    def choose(self, row: Row) -> None:
        """Choose a checkpoint, or no longer."""
        self.chosen = tuple(r for r in self.chosen if r != row) if row in self.chosen else (*self.chosen, row)
        self._follow()

    def open(self, place: Place) -> None:
        """Show an image large; the slider leads to the images of the other checkpoints for its prompt."""
        table, strength = self.session.table, self._strength
        column = table.columns[place[1]]
        images = [(row, table.image(row, column, strength)) for row in table.rows]
        shown = [(row, image) for row, image in images if image is not None]
        tiles = [Tile(image, f"{row.label}: {column.prompt}") for row, image in shown]
        index = [row for row, _ in shown].index(table.rows[place[0]])
        ImageViewer(self._context.root, self.theme, self._context.pump, tiles, index, "Checkpoints")

    def vote(self, *, seed: int | None = None) -> VoteWindow | None:
        """Vote between the chosen checkpoints without seeing which is which."""
        number = secrets.randbits(32) if seed is None else seed
        vote = BlindVote(self.session.table, self.chosen, self._strength, seed=number)
        if not vote.rounds:
            self._context.notify("The chosen checkpoints have no prompt of which each has an image.")
            return None
        return VoteWindow(self._context, vote, self.use)

    def use(self, row: Row) -> None:
        """Make a checkpoint the result of its run, if the user agrees."""
        run = self.session.table.names.get(row.run_dir, row.run_dir.name)
        message = f"{row.checkpoint.label} becomes the result of {run}. The model that is there now is kept."
        answers = (Answer("cancel", "Cancel"), Answer("use", "Use it", is_default=True))
        if self._context.interaction.choose("Use this checkpoint?", message, answers) == "use":
            self.session.use(row)

    # -- building

    def _build(self) -> None:
        context, px = self._context, self.theme.px
        self._add_footer()
        top = Panel(self, context.theme)
        top.pack(fill="x", padx=px(PAD), pady=(px(PAD), 0))
        self.choice = Choice(top, context.theme, self.strength, {"1": "1"}, on="window", width=90)
        self.strength_label = Text(top, context.theme, "Strength", colour="label")
        self.strength.trace_add("write", lambda *_: self._soon())
        self.hint = Text(top, context.theme, _HINT, colour="muted")
        self.hint.pack(side="left")
        self.card = Card(self, context.theme)
        Text(self.card.body, context.theme, "Prompts", colour="label", on="card").pack(anchor="w", padx=px(12))
        self.prompts = TextVar(master=self)
        area = TextArea(self.card.body, context.theme, self.prompts, lines=3, placeholder=_PROMPTS)
        area.pack(fill="x", padx=(px(12), 0), pady=(px(4), px(6)))
        self.form = SectionForm(self.card.body, context, self.session.defaults(), without=_HIDDEN)
        self.form.pack(fill="x")
        self.grid_view = CheckpointGrid(self, context.theme, context.pump, on_open=self.open, on_choose=self.choose)
        self.grid_view.empty_text = _EMPTY
        self.grid_view.pack(fill="both", expand=True, padx=px(PAD), pady=(px(8), 0))
        self._fit_form()

    def _add_footer(self) -> None:
        context, px = self._context, self.theme.px
        footer = Panel(self, context.theme)
        footer.pack(side="bottom", fill="x", padx=px(PAD), pady=(px(8), px(12)))
        self.bar = ThinBar(footer, context.theme, on="window")
        self.bar.pack(fill="x")
        self.status = WrappedText(footer, context.theme, colour="label")
        self.status.pack(fill="x", pady=px(6))
        row = Panel(footer, context.theme)
        row.pack(fill="x")
        vote_tip = f"Choose between the images of {FEWEST} to {MOST} checkpoints without their names"
        for name, label, press, tip, is_last in (
            ("start", "Compare", self.start, "Sample and score what is not there yet", False),
            ("settings", "Settings", self.toggle_form, "Seeds, strengths, backups and scores", False),
            ("close", "Close", self.close, "The images stay in the folder of the run", True),
            ("use", "Use this one", self._use_chosen, "The result of the run becomes this checkpoint", True),
            ("vote", "Blind vote", self.vote, vote_tip, True),
        ):
            self.buttons[name] = context.buttons.add(row, label, press, tip, is_last=is_last, width=100)
        self.buttons["stop"] = Button(row, context.theme, "Stop", self.session.runner.stop, style="danger", width=92)

    def _use_chosen(self) -> None:
        self.use(self.chosen[0])

    # -- following

    @property
    def _strength(self) -> float:
        shown = self.strength.get()
        return next((strength for strength in self.session.table.strengths if f"{strength:g}" == shown), 1.0)

    def _soon(self) -> None:
        pump = self._context.pump
        pump.redraw_soon(self, self._follow, at_most_every_seconds=0.1)
        if self.session.runner.state.is_active:
            pump.redraw_soon((self, "read"), self._read, at_most_every_seconds=_READ_SECONDS)

    def _read(self) -> None:
        """Show the images so far; once more when the job ends, by the session."""
        if self.session.runner.state.is_active:
            self.session.refresh()

    def _fit_form(self) -> None:
        if self._has_form:
            self.card.pack(fill="x", padx=self.theme.px(PAD), pady=(self.theme.px(8), 0), before=self.grid_view)
        else:
            self.card.pack_forget()

    def _follow(self) -> None:
        session, table = self.session, self.session.table
        state = session.runner.state
        is_empty = not table.num_images
        if self._was_empty and not is_empty:  # the first images: they need the room
            self._was_empty, self._has_form = False, False
            self._fit_form()
        self.chosen = tuple(row for row in table.rows if _key(row) in {_key(r) for r in self.chosen})
        self._show_strengths(table.strengths)
        if table.names:
            self.title(f"Checkpoints of {', '.join(table.names.values())}")
        self.grid_view.show(table, self._strength, self.chosen)
        self.bar.set(state.share if state.is_active else 0.0)
        self._show_status()
        for name, is_enabled in (
            ("start", not state.is_active),
            ("use", len(self.chosen) == 1 and not state.is_active),
            ("vote", FEWEST <= len(self.chosen) <= MOST),
        ):
            self.buttons[name].set_enabled(is_enabled)
        if state.is_active:
            self.buttons["stop"].pack(side="left")
        else:
            self.buttons["stop"].pack_forget()
        self.buttons["start"].restyle("primary" if is_empty else "plain")
        self.buttons["use"].restyle("primary" if len(self.chosen) == 1 else "plain")

    def _show_strengths(self, strengths: Sequence[float]) -> None:
        """Offer the strengths, if there are several; the highest that is at most 1 is shown first."""
        choices = {f"{strength:g}": f"{strength:g}" for strength in strengths}
        if not choices or choices == dict(self.choice.choices):
            return
        self.choice.set_choices(choices)
        if self.strength.get() not in choices:
            usual = [strength for strength in strengths if strength <= 1.0]
            self.strength.set(f"{max(usual) if usual else min(strengths):g}")
        if len(choices) > 1:
            self.strength_label.pack(side="left", padx=(0, GAP), before=self.hint)
            self.choice.pack(side="left", padx=(0, self.theme.px(PAD)), before=self.hint)
        else:
            for widget in (self.strength_label, self.choice):
                widget.pack_forget()

    def _show_status(self) -> None:
        state = self.session.runner.state
        text, is_problem = self.session.message, self.session.is_problem
        if state.is_active:
            text, is_problem = state.status, False
        elif not text:
            text, is_problem = " ".join((state.status, *state.notes)).strip(), state.stage == "failed"
        self.status.set_text(text)
        self.status.recolour("error" if is_problem else "label")


def _key(row: Row) -> tuple[Path, str]:
    """Return the key of a row, which its figures and kinds do not change."""
    return row.run_dir, row.checkpoint.name


def open_checkpoints(context: Context, run_dirs: Sequence[Path]) -> CheckpointsWindow:
    """Open the window for some runs; one that is sampling is brought to the front instead."""
    for old in [w for w in context.root.winfo_children() if isinstance(w, CheckpointsWindow)]:
        if old.session.runner.state.is_active:
            old.lift()
            return old
        old.close()
    return CheckpointsWindow(context, run_dirs)
