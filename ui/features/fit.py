"""The window "Fit to my card": the card's size, the proposed settings with what each saves and costs, and Apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from modules.config.schema import Config
from modules.system.file_errors import plain_reason
from modules.system.problem import Problem, count
from ui.forms.changes import value_text
from ui.forms.context import Context
from ui.forms.findings import locate
from ui.forms.model import FormModel
from ui.loop.background import Background, Job, Report
from ui.loop.signal import Signal
from ui.widgets.dialog import Window
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

if TYPE_CHECKING:
    from trainer.preflight.fit import Fit
    from trainer.preflight.run_budget import Budget


Stage = Literal["measuring", "computing", "ready", "failed"]
_NO_ESTIMATE = (
    "The memory of this run cannot be estimated. It needs images, and a base model whose shapes are known: Start lists "
    "what is missing."
)
_FREE_NOW = "free on the training device now"
_FREE_OF_COMPUTER = "free now. No GPU was found: enter the size of a card to fit the run to it."
_UNKNOWN = "No card was found here: enter the size of yours."
_USUAL_BYTES = 8_000_000_000  # of a card, if none is found


@dataclass(frozen=True, slots=True)
class FitRow:
    """A line of the table: the setting's place, its values, the memory and the time. `path` leads to its field."""

    path: str
    place: str
    before: str
    now: str
    memory: str
    time: str


@dataclass(frozen=True, slots=True)
class FitMeasurement:
    """The result of the first look: the inputs of the estimates, and the free bytes of the training device.

    With `is_processor` they are free bytes of the computer's memory.
    """

    budget: Budget | None
    free_bytes: int | None
    is_processor: bool = False


def measure(config: Config, report: Report) -> FitMeasurement:
    """Return the inputs of the estimates, for a background thread: scans the images, asks the driver."""
    # Imported here: the window is drawn without the estimate's code.
    from modules.system.hardware import here
    from trainer.data.datasets import datasets_of
    from trainer.data.hub_datasets import with_local_folders
    from trainer.preflight.estimates import sizes_of
    from trainer.preflight.fit import free_here
    from trainer.preflight.passes import MALFORMED_CONFIG, trace_unknown
    from trainer.preflight.run_budget import budget_of

    try:
        trace_unknown(config, report)
        datasets = datasets_of(with_local_folders(config), partial(report, "scanning"))
        budget = budget_of(config, sizes_of(datasets.training, datasets.validation))
    except (*MALFORMED_CONFIG, OSError):
        budget = None
    return FitMeasurement(budget, free_here(config), is_processor=here().kind_of(config.general.train_device) == "cpu")


def compute(budget: Budget, card_bytes: int, *, is_this_card: bool) -> Fit:
    """Return the settings that fit a card; for a background thread."""
    from trainer.preflight.fit import fit_budget
    from trainer.preflight.run_budget import on_a_gpu

    return fit_budget(budget if is_this_card else on_a_gpu(budget), card_bytes=card_bytes)


class Fitting:
    """One proposal at a time; `changed` is emitted when the stage or the result changes."""

    def __init__(
        self,
        form: FormModel,
        background: Background,
        *,
        measure_config: Callable[[Config, Report], FitMeasurement] = measure,
        compute_fit: Callable[..., Fit] = compute,
    ) -> None:
        self.stage: Stage = "measuring"
        self.message = "Looking at the images and the model…"
        self.card_text = ""
        self.card_note = ""
        self.fit: Fit | None = None
        self.rows: tuple[FitRow, ...] = ()
        self.changed: Signal[[]] = Signal()
        self._form = form
        self._background = background
        self._compute = compute_fit
        self._config = form.config
        self._measurement: FitMeasurement | None = None
        self._detected_text = ""
        config = form.config
        self._job: Job = background.run_reporting(
            lambda report: measure_config(config, report), self._keep, self._report_failure, progress=self._show_work
        )

    @property
    def size_label(self) -> str:
        """The label of the size: a card's memory, or the computer's if a run would train on the processor."""
        is_detected = bool(self._detected_text) and self.card_text == self._detected_text
        is_processor = self._measurement is not None and self._measurement.is_processor
        return "Computer's memory" if is_processor and is_detected else "Card memory"

    @property
    def can_apply(self) -> bool:
        """Whether there are proposed settings, and the config has not changed since they were computed."""
        return self.stage == "ready" and bool(self.rows) and self._form.config == self._config

    def set_card(self, text: str) -> None:
        """Compute for another size of the card; an invalid one is reported."""
        from trainer.preflight.fit import size_of

        if self._measurement is None:
            self.card_text = text  # computed for once the run is measured
            return
        if self._measurement.budget is None:
            return
        size, budget = size_of(text), self._measurement.budget
        self.card_text = text
        if size is None:
            self._enter("failed", f"{text!r} is not a size of memory. Write it as 8 GB.")
            return
        is_this_card = text == self._detected_text and self._measurement.free_bytes is not None
        if is_this_card and self._measurement.free_bytes is not None:
            size = self._measurement.free_bytes
        self.card_note = (
            (_FREE_OF_COMPUTER if self._measurement.is_processor else _FREE_NOW)
            if is_this_card
            else f"{self._detected_text} are free here now"
            if self._detected_text
            else _UNKNOWN
        )
        self._job.cancel()
        self._enter("computing", "Estimating the choices…")
        self._job = self._background.run(
            lambda: self._compute(budget, size, is_this_card=is_this_card), self._show, self._report_failure
        )

    def apply(self) -> str:
        """Apply the proposed settings as one undo step; return a sentence about it."""
        if not self.can_apply or self.fit is None:
            return ""
        self._form.replace(self.fit.config)
        return f"Changed {count(len(self.rows), 'setting')} to fit the card. Ctrl+Z undoes it."

    def close(self) -> None:
        """Drop what is still being computed."""
        self._job.cancel()

    def _keep(self, measurement: FitMeasurement) -> None:
        self._measurement = measurement
        if measurement.budget is None:
            self._enter("failed", _NO_ESTIMATE)
            return
        text = f"{(measurement.free_bytes or _USUAL_BYTES) / 1e9:.1f} GB"
        self._detected_text = text if measurement.free_bytes else ""
        self.set_card(self.card_text or text)

    def _show_work(self, what: str, done: int, total: int) -> None:
        progress = f" {done:,} of {total:,}" if total > 1 else ""
        self._enter("measuring", f"{what.capitalize()}{progress}…")

    def _show(self, fit: Fit) -> None:
        from trainer.preflight.fit import describe_fit

        self.fit = fit
        self.rows = tuple(_rows(self._config, fit))
        self._enter("ready", describe_fit(fit))

    def _report_failure(self, error: Exception) -> None:
        self._enter("failed", f"The memory could not be estimated: {plain_reason(error)}.")
        raise error

    def _enter(self, stage: Stage, message: str) -> None:
        self.stage, self.message = stage, message
        if stage != "ready":
            self.fit, self.rows = None, ()
        self.changed()


def _rows(config: Config, fit: Fit) -> list[FitRow]:
    from trainer.preflight.fit import bytes_words, factor_words

    rows = []
    for change in fit.changes:
        figures = (bytes_words(change.saved_bytes), factor_words(change.time_factor))
        for path, _ in change.move.values:
            place = locate(Problem(path, ""), config).place
            rows.append(FitRow(path, place, value_text(config, path), value_text(fit.config, path), *figures))
            figures = ("", "")  # a change of several settings counts once
    return rows


_COLUMNS = (
    Column("#0", "Setting", 350, is_stretched=True),
    Column("before", "Now", 170),
    Column("now", "Proposed", 170),
    Column("memory", "Memory", 90, "e"),
    Column("time", "Step time", 90, "e"),
)


class FitWindow(Window):
    """Shows the proposed settings before they are applied; closing changes nothing."""

    is_single = True

    def __init__(self, context: Context, fitting: Fitting | None = None) -> None:
        super().__init__(context.root, context.theme, "Fit to my card")
        self.fitting = fitting or Fitting(context.form, context.pump.background)
        self.card = TextVar(master=self)
        self._context = context
        px = context.theme.px
        self._add_header(px(PAD))
        self._add_footer()
        self.table = Table(self, context.theme, _COLUMNS)
        self.table.on_events({"<Return>": self.go, "<Double-Button-1>": self.go})
        self.at_close(self.fitting.close)
        self.redraw_after(context.pump, self._follow, self.fitting.changed, context.form.changed)
        self._follow()
        self.appear(900, 470)
        self.entry.tk_entry.focus_set()

    def compute(self) -> None:
        """Compute for the size in the entry."""
        if self.card.get().strip() != self.fitting.card_text:
            self.fitting.set_card(self.card.get().strip())

    def go(self) -> None:
        """Show the field of the selected row; the window stays open."""
        if self.table.selected:
            self._context.navigation.go_to(self.fitting.rows[self.table.selected[0]].path)

    def apply(self) -> None:
        """Apply the proposed settings and close."""
        message = self.fitting.apply()
        if message:
            self._context.notify(message)
            self.close()

    def _add_header(self, pad: int) -> None:
        px = self.theme.px
        header = Panel(self, self.theme)
        header.pack(fill="x", padx=pad, pady=(pad, px(10)))
        self.size_label = Text(header, self.theme, self.fitting.size_label, colour="label")
        self.size_label.pack(side="left", padx=(0, GAP))
        self.entry = Entry(header, self.theme, self.card, on="window", width=90)
        self.entry.pack(side="left")
        self.entry.tk_entry.bind("<Return>", lambda _e: self.compute())
        self.entry.tk_entry.bind("<FocusOut>", lambda _e: self.compute(), add="+")
        self.card_note = Text(header, self.theme, colour="muted")
        self.card_note.pack(side="left", padx=(px(12), 0))
        self.summary = WrappedText(self, self.theme)
        self.summary.pack(fill="x", padx=pad, pady=(0, px(12)))

    def _add_footer(self) -> None:
        footer = self.add_footer("Cancel", above_px=0)
        self.apply_button = self.add_main_button("Apply", self.apply)
        note = "Times are estimates for a mid-range card: use them to compare."
        Text(footer, self.theme, note, colour="muted", role="small").pack(side="left")

    def _follow(self) -> None:
        fitting = self.fitting
        if fitting.card_text and not self.card.get():
            self.card.set(fitting.card_text)
        self.card_note.set_text(fitting.card_note)
        self.size_label.set_text(fitting.size_label)
        self.entry.mark_invalid(fitting.stage == "failed" and bool(fitting.card_text))
        fails = fitting.stage == "failed" or (fitting.fit is not None and not fitting.fit.fits)
        self.summary.recolour("warning" if fails else "muted" if fitting.stage != "ready" else "text")
        self.summary.set_text(fitting.message)
        self.table.set_rows([(f" {r.place}", (r.before, r.now, r.memory, r.time), "") for r in fitting.rows])
        if fitting.rows:
            self.table.pack(fill="both", expand=True, padx=self.theme.px(PAD), pady=(0, self.theme.px(12)))
        else:
            self.table.pack_forget()
        self.apply_button.set_enabled(fitting.can_apply)
