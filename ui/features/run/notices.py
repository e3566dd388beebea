"""The notices at the top of the Run page: the best model as the result, and settings that the run does not have."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from modules.config.schema import Config
from modules.system.paths import as_config_path, from_root
from trainer.machine_events import ImagesReported
from trainer.run_folder.result import results_of, use_as_result
from trainer.wording import format_loss
from ui.features.run.facts import describe_edits
from ui.forms.changes import Change, edits_since_start
from ui.forms.context import Context
from ui.loop.run_state import RunState
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.theme import GAP


@dataclass(frozen=True, slots=True)
class BestOffer:
    """The best model: its step, loss and file; the place of the result, and the step of the model there, if any.

    `last_model` is what a run without a result has saved at its end, if anything; `has_other` is whether there is a
    model at the place of the result, which is not of this run.
    """

    step: int
    loss: float | None
    source: Path
    destination: Path
    result_step: int | None
    run_dir: Path
    last_model: str = ""
    has_other: bool = False

    @property
    def text(self) -> str:
        """The offer as a text."""
        best = f"Best validation was step {self.step:,} ({format_loss(self.loss)})"
        if self.result_step is not None:
            return f"{best}; the result is from step {self.result_step:,}."
        last = f" Its last model is {as_config_path(Path(self.last_model))}." if self.last_model else ""
        other = f" {as_config_path(self.destination)} is from another run and would be kept." if self.has_other else ""
        return f"{best}. This run has no result yet.{last}{other}"


@dataclass(frozen=True, slots=True)
class UsedModel:
    """The best model has become the result; `earlier_model` is the new place of the result before, if any."""

    offer: BestOffer
    earlier_model: Path | None

    @property
    def text(self) -> str:
        """The change that was made, as text."""
        before = f" The model before is kept as {as_config_path(self.earlier_model)}." if self.earlier_model else ""
        return f"Step {self.offer.step:,} is now {as_config_path(self.offer.destination)}.{before}"


def best_offer(state: RunState, config: Config) -> BestOffer | None:
    """Return the offer after a run of a config; None if it has not ended, nothing is better, or nothing was kept.

    Whether the file is still there is checked when it is used.
    """
    validation, finished = state.validation, state.finished
    best = next((s for s in reversed(state.saves) if s.best_by == "validation" and not s.is_final), None)
    if finished is None or validation is None or best is None or state.started is None:
        return None
    final = next((s for s in reversed(state.saves) if s.is_final), None)
    if best.step != validation.best_step or best.step == (final.step if final else finished.step):
        return None
    destination = Path(final.path) if final else from_root(config.output.destination)
    return BestOffer(
        best.step,
        validation.best_loss,
        Path(best.path),
        destination,
        final.step if final else None,
        Path(state.started.run_dir),
        finished.model_path if final is None else "",
        has_other=final is None and destination.exists(),
    )


def is_chosen_already(offer: BestOffer) -> bool:
    """Return whether an earlier model has been chosen as the result of the run, here or among its checkpoints."""
    newest = next((result for result in reversed(results_of(offer.run_dir)) if not result.is_abandoned), None)
    return newest is not None and newest.model_step is not None


def use(offer: BestOffer) -> UsedModel:
    """Make the best model the result; for a background thread. Raises OSError; the result is then unchanged."""
    kept = use_as_result(offer.source, offer.destination, run_dir=offer.run_dir, is_kept=True, step=offer.step)
    return UsedModel(offer, kept)


def undo(used: UsedModel) -> BestOffer:
    """Put the model back that was the result before. Raises OSError."""
    if used.earlier_model is not None:
        use_as_result(used.earlier_model, used.offer.destination, run_dir=used.offer.run_dir, is_kept=False)
    return used.offer


T = TypeVar("T")


class Notice(Panel):
    """A text with buttons on a coloured bar; hidden while its text is empty."""

    def __init__(self, master: tk.Misc, context: Context, token: str) -> None:
        super().__init__(master, context.theme, "card")
        px = context.theme.px
        self._context = context
        Panel(self, context.theme, token, width=px(4)).pack(side="left", fill="y")
        self.row = Panel(self, context.theme, "card")
        self.row.pack(side="right", padx=px(12), pady=px(7))
        self.text = WrappedText(self, context.theme, on="card")
        self.text.pack(side="left", fill="x", expand=True, padx=px(12), pady=px(8))
        self.buttons: dict[str, Button] = {}

    def show_text(self, text: str) -> None:
        """Show a text, or hide the notice."""
        self.text.set_text(text)
        if text and not self.winfo_manager():
            self.pack(fill="x", pady=(0, self.theme.px(GAP)))
        elif not text:
            self.pack_forget()

    def set_buttons(self, *buttons: tuple[str, Callable[[], object]]) -> None:
        """Replace the buttons."""
        for old in self.buttons.values():
            old.destroy()
        self.buttons = {}
        for label, command in buttons:
            button = Button(self.row, self.theme, label, command, on="card")
            button.pack(side="left", padx=(self.theme.px(GAP), 0))
            self.buttons[label] = button


class RunNotices(Panel):
    """Call `follow` after a change of the run, and `follow_settings` after one of the settings."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme)
        self._context = context
        self._offer: BestOffer | None = None
        self._dismissed: BestOffer | None = None
        self._is_busy = False
        self.used: UsedModel | None = None  # the best model that has become the result
        self.best, self.edited = Notice(self, context, "good"), Notice(self, context, "info")
        self.images = Notice(self, context, "info")
        self._seen_report: ImagesReported | None = None
        self.edited.set_buttons(("Show", context.links.show_run_changes))
        # An empty frame keeps the height of its last child; this one makes it zero.
        Panel(self, context.theme, height=1, width=1).pack(side="bottom")

    @property
    def edits(self) -> tuple[Change, ...]:
        """The settings that differ from the current run's."""
        config = self._context.session.form_config
        return () if config is None else edits_since_start(self._context.form.config, config)

    def follow_settings(self) -> None:
        """Show which settings the run does not have."""
        self.edited.show_text(describe_edits(self.edits))

    @property
    def asks_for_result(self) -> bool:
        """Whether the best model is offered as the result."""
        return self._offer is not None and self._offer != self._dismissed and self.used is None

    def used_step(self, state: RunState) -> int | None:
        """Return the step of the best model that has become the result of a run; None if none has."""
        if self.used is None or state.started is None or self.used.offer.run_dir != Path(state.started.run_dir):
            return None
        return self.used.offer.step

    def follow(self) -> None:
        """Show a report on the images, and offer the best model once the run has ended."""
        session = self._context.session
        self._show_report(session.state.image_report)
        is_over = not session.is_active and session.config is not None
        offer = best_offer(session.state, session.config) if is_over and session.config is not None else None
        if self.used is not None and offer is not None and offer.run_dir != self.used.offer.run_dir:
            self.used = None  # it was of an earlier run
        if offer is not None and self.used is None and is_chosen_already(offer):
            offer = None
        if offer == self._offer or self._is_busy:
            return
        self._offer = offer
        self._show_offer(offer)

    def _show_report(self, report: ImagesReported | None) -> None:
        if report == self._seen_report:
            return
        self._seen_report = report
        open_page = partial(self._context.interaction.open_path, Path(report.path) if report else Path())
        close: tuple[str, Callable[[], object]] = ("Close", partial(self.images.show_text, ""))
        if report is not None and report.path:
            worst = sorted(report.outliers, key=lambda image: -report.outliers[image])
            show = partial(self._context.links.show_losses, [Path(image) for image in worst])
            self.images.set_buttons(("Sort by loss", show), ("Open report", open_page), close)
        else:
            self.images.set_buttons(close)
        self.images.show_text(report.summary if report is not None else "")

    def _show_offer(self, offer: BestOffer | None) -> None:
        if offer is None or offer == self._dismissed:
            self.best.show_text("")
            return
        rest = f"Keep step {offer.result_step:,}" if offer.result_step is not None else "Not now"
        self.best.set_buttons(
            (f"Use step {offer.step:,}", partial(self._use, offer)),
            (rest, partial(self._dismiss, offer)),
        )
        self.best.show_text(offer.text)

    def _dismiss(self, offer: BestOffer) -> None:
        self._dismissed = offer
        self.best.show_text("")

    def _use(self, offer: BestOffer) -> None:
        self._work(partial(use, offer), self._show_used)

    def _show_used(self, used: UsedModel) -> None:
        self.used = used
        buttons: list[tuple[str, Callable[[], object]]] = [("Close", partial(self._dismiss, used.offer))]
        if used.earlier_model is not None:
            buttons.insert(0, ("Undo", partial(self._undo, used)))
        self.best.set_buttons(*buttons)
        self.best.show_text(used.text)

    def _undo(self, used: UsedModel) -> None:
        self._work(partial(undo, used), self._show_undone)

    def _show_undone(self, offer: BestOffer) -> None:
        self.used = None
        self._show_offer(offer)

    def _work(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Copy in the background, with the buttons disabled until then."""
        for button in self.best.buttons.values():
            button.set_enabled(False)
        self._is_busy = True

        def finish(result: T) -> None:
            self._is_busy = False
            if self.winfo_exists():
                done(result)
                self.follow()
                self._context.session.changed()  # the card of the end shows the result, too

        def fail(error: Exception) -> None:
            self._is_busy = False
            self._context.show_error("The model could not be copied", error, advice="The result is unchanged.")
            if self.winfo_exists():
                self._show_offer(self._offer)

        self._context.pump.background.run(work, finish, fail)
