"""How long to train: the images of a run, counted in the background, and the usual length for each subject."""

from __future__ import annotations

from functools import partial
from typing import Literal

from modules.config.schema import Config
from modules.data.subjects import Amount, LengthChoice, length_choices
from modules.system.problem import count
from ui.forms.model import FormModel
from ui.loop.background import Background, Job, Report
from ui.loop.signal import Signal

Stage = Literal["counting", "ready", "failed"]


def _find_amount(config: Config, report: Report) -> Amount | None:
    from trainer.preflight.subject_length import find_amount

    return find_amount(config, partial(report, "scanning"))


class LengthModel:
    """The choices for the concepts of the form as they were at first; `changed` is emitted when they are known."""

    def __init__(self, form: FormModel, background: Background) -> None:
        self.stage: Stage = "counting"
        self.choices: tuple[LengthChoice, ...] = ()
        self.changed: Signal[[]] = Signal()
        self._form = form
        self._amount: Amount | None = None
        config = form.config
        self._job: Job = background.run_reporting(
            partial(_find_amount, config), self._keep, progress=lambda _what, _done, _total: None
        )

    @property
    def message(self) -> str:
        """The sentence about the images that are known, and the present length."""
        if self.stage == "counting":
            return "Counting the images…"
        if self._amount is None or not self.choices:
            return "There are no images to train on yet. Add their folder on the Concepts page."
        epochs = self._form.config.training.epochs
        now = f"{count(epochs, 'epoch')}, {count(self._amount.steps(epochs), 'step')}"
        views = self._amount.samples_per_epoch * epochs / self._amount.num_images
        return (
            f"What do your {count(self._amount.num_images, 'image')} show? Now: {now}, each is seen {views:,.0f} times."
        )

    def apply(self, choice: LengthChoice) -> str:
        """Set the length as one edit, and return a sentence about it."""
        from trainer.preflight.subject_length import with_epochs

        self._form.replace(with_epochs(self._form.config, choice.epochs))
        return f"{choice.subject.label}: {choice.length}. Ctrl+Z undoes it."

    def close(self) -> None:
        """Drop what is still being counted."""
        self._job.cancel()

    def _keep(self, amount: Amount | None) -> None:
        self._amount = amount
        self.choices = length_choices(amount) if amount is not None else ()
        self.stage = "ready" if self.choices else "failed"
        self.changed()
