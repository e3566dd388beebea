"""The window of the probe: what to measure, its progress with Stop, the plots, and buttons that apply the findings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from modules.config.codec import export_file
from modules.settings.edit import set_path
from modules.settings.field import Section
from modules.system.errors import DarkroomError
from trainer.child.process import Spawn, spawn_trainer
from trainer.jobs.config import new_results_folder
from trainer.jobs.registry import JOBS
from trainer.jobs.spec import JobSpec, validate_settings
from trainer.probe.curve import RatePoint
from trainer.probe.plot import Plot as ProbePlot
from trainer.probe.plot import batch_plot, rate_plot, y_range
from ui.forms.context import Context
from ui.forms.model import FormModel
from ui.loop.background import Background
from ui.loop.jobs import JobRunner
from ui.loop.metric_curves import short_number
from ui.loop.series import Series
from ui.loop.signal import Signal
from ui.widgets.controls import Button, Switch
from ui.widgets.dialog import Window, bring_to_front
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.plot import Plot
from ui.widgets.plot_axes import Axis
from ui.widgets.plot_model import TITLED, Column, Figure, Line, Mark, Readout
from ui.widgets.progress import ThinBar
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import FlagVar, TextVar

BATCH, RATE = "batch", "rate"


@dataclass(frozen=True, slots=True)
class ProbeFindings:
    """The results of a probe: text and plot of each search, and the value to apply, if any."""

    summaries: tuple[str, ...] = ()
    plots: Mapping[str, ProbePlot] = field(default_factory=dict)
    batch: int | None = None
    rate: float | None = None


def read_findings(folder: Path) -> ProbeFindings:
    """Return the results that a probe wrote into a folder. Raises OSError and ValueError for an unreadable file."""
    data: dict[str, dict[str, Any]] = json.loads((folder / "points.json").read_text(encoding="utf-8"))
    of_batch, of_rate = data.get("batch", {}), data.get("learning_rate", {})
    plots = {}
    if of_rate.get("points"):
        rates = [RatePoint(**point) for point in of_rate["points"]]
        plots[RATE] = rate_plot(
            [p.rate for p in rates], [p.change for p in rates], of_rate["smoothed"], of_rate["suggested"]
        )
    if points := of_batch.get("points"):
        speeds = [p["images_per_second"] for p in points]
        plots[BATCH] = batch_plot([p["batch_size"] for p in points], speeds, of_batch["fastest"])
    return ProbeFindings(
        tuple(str(part["words"]) for part in (of_rate, of_batch) if part),
        plots,
        of_batch.get("fastest"),
        of_rate.get("suggested"),
    )


def batches_of(batch: int, effective: int) -> tuple[int, int]:
    """Return the micro-batch and the accumulation steps: the largest divisor of the effective batch up to `batch`."""
    size = next(n for n in range(min(batch, effective), 0, -1) if effective % n == 0)
    return size, effective // size


class Probing:
    """One probe at a time; `changed` is emitted when its job or its findings change."""

    def __init__(
        self,
        form: FormModel,
        background: Background,
        *,
        may_start: Callable[[], bool],
        spawn: Spawn = spawn_trainer,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.runner = JobRunner(spawn=spawn)
        self.findings = ProbeFindings()
        self.folder: Path | None = None
        self.problem = ""
        self.changed: Signal[[]] = Signal()
        self._form, self._background, self._may_start, self._now = form, background, may_start, now
        self._is_read = True
        self.runner.changed.subscribe(self._follow)

    @property
    def effective_batch(self) -> int:
        """The batch size times the accumulation steps of the form."""
        training = self._form.config.training
        return training.batch_size * training.accumulation_steps

    @property
    def batches(self) -> tuple[int, int]:
        """The measured micro-batch with its accumulation steps."""
        return batches_of(self.findings.batch or 1, self.effective_batch)

    def start(self, what: set[str], steps_text: str) -> None:
        """Write the config into a new folder of the workspace, and measure it in a child process."""
        probe = JOBS["probe"]
        values = {"what": "both" if len(what) > 1 else next(iter(what), ""), "steps": steps_text.strip()}
        try:
            if not what:
                raise DarkroomError("Choose what to measure.")
            settings = validate_settings(probe.settings, values)
            if not self._may_start():
                raise DarkroomError(
                    "A run is training. Wait until it has ended, or stop it: both need the whole device."
                )
            self._launch(probe, settings)
        except DarkroomError as error:
            self.problem = str(error)
            self.changed()

    def take_rate(self) -> str:
        """Set the suggested learning rate; return what happened as a sentence."""
        rate = self.findings.rate
        if rate is None:
            return ""
        self._form.edit("training.learning_rate", float(f"{rate:.2g}"))
        return f"The learning rate is {rate:.2g}. Ctrl+Z undoes it."

    def take_batch(self) -> str:
        """Set the measured micro-batch, with the accumulation steps that keep the effective batch, as one step."""
        if self.findings.batch is None:
            return ""
        size, steps = self.batches
        config, _ = set_path(self._form.config, "training.batch_size", size)
        config, _ = set_path(config, "training.accumulation_steps", steps)
        self._form.replace(config)
        return f"The batch size is {size}, with {steps} accumulation steps. Ctrl+Z undoes it."

    def _launch(self, probe: JobSpec, settings: Section) -> None:
        self.folder = new_results_folder(self._form.config, "probes", self._now())
        file = self.folder / "config.json"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            export_file(self._form.config, file)
        except OSError as error:
            raise DarkroomError(f"{file} cannot be written: {error.strerror or error}.") from error
        self.findings, self.problem, self._is_read = ProbeFindings(), "", False
        self.runner.start(probe, settings.model_copy(update={"config": str(file), "out": str(self.folder)}))

    def _follow(self) -> None:
        if self.runner.state.stage == "finished" and not self._is_read and self.folder is not None:
            self._is_read, folder = True, self.folder
            self._background.run(lambda: read_findings(folder), self._keep)
        self.changed()

    def _keep(self, findings: ProbeFindings) -> None:
        self.findings = findings
        self.changed()


_HELP = (
    "Trains a few real steps to find the batch size beyond which throughput hardly rises, and the learning rate at "
    "which the loss falls most steeply (a range test, Smith 2017). Your runs are not affected."
)
_LABELS = {RATE: "Learning rate", BATCH: "Batch size"}


class ProbeWindow(Window):
    """Starts a probe in a process of its own; closing the window stops it."""

    def __init__(self, context: Context, probing: Probing | None = None) -> None:
        super().__init__(context.root, context.theme, "Probe")
        self._context = context
        may_start = lambda: context.session.stage == "idle"  # noqa: E731
        self.probing = probing or Probing(context.form, context.pump.background, may_start=may_start)
        self.switches = {name: FlagVar(master=self, value=True) for name in _LABELS}
        self.steps = TextVar(master=self, value="60")
        self._plot_name = RATE
        self._shown_plot: ProbePlot | None = None
        pad = context.theme.px(PAD)
        WrappedText(self, context.theme, _HELP, colour="muted").pack(fill="x", padx=pad, pady=(pad, 0))
        self._add_choices(pad)
        self._add_footer()
        self._add_progress(pad)
        self.plot = Plot(self, context.theme, on="window", size_px=(300, 160))
        self.plot.pack(fill="both", expand=True, padx=pad, pady=(0, context.theme.px(8)))
        self.drain(context.pump, self.probing.runner.drain)
        self.at_close(self.probing.runner.close)
        self.redraw_after(context.pump, self._follow, self.probing.changed)
        self._follow()
        self.appear(760, 560)

    def start(self) -> None:
        """Start measuring what is chosen."""
        self.probing.start({name for name, flag in self.switches.items() if flag.get()}, self.steps.get())

    def take(self, name: str) -> None:
        """Apply a result to the form."""
        message = self.probing.take_rate() if name == RATE else self.probing.take_batch()
        if message:
            self._context.notify(message)

    def show_plot(self, name: str) -> None:
        """Show the plot of a search."""
        self._plot_name = name
        self._follow()

    def _add_choices(self, pad: int) -> None:
        px, row = self.theme.px, Panel(self, self.theme)
        row.pack(fill="x", padx=pad, pady=px(12))
        for name, label in _LABELS.items():
            Text(row, self.theme, label, colour="label").pack(side="left", padx=(0, px(6)))
            Switch(row, self.theme, self.switches[name], on="window").pack(side="left", padx=(0, px(18)))
        Text(row, self.theme, "Steps of the sweep", colour="label").pack(side="left", padx=(0, px(6)))
        Entry(row, self.theme, self.steps, on="window", width=60).pack(side="left")
        self.start_button = Button(row, self.theme, "Start", self.start, style="primary", width=92)
        self.start_button.pack(side="right")
        self.stop_button = Button(row, self.theme, "Stop", self.probing.runner.stop, style="danger", width=92)

    def _add_progress(self, pad: int) -> None:
        px = self.theme.px
        self.bar = ThinBar(self, self.theme)
        self.bar.pack(fill="x", padx=pad)
        self.status = WrappedText(self, self.theme)
        self.status.pack(fill="x", padx=pad, pady=(px(6), px(8)))

    def _add_footer(self) -> None:
        footer = self.add_footer(above_px=0)
        self.take_buttons = {
            name: Button(footer, self.theme, "", partial(self.take, name), style="primary") for name in _LABELS
        }
        self.plot_buttons = {
            name: Button(footer, self.theme, label, partial(self.show_plot, name)) for name, label in _LABELS.items()
        }
        self.folder_button = Button(footer, self.theme, "Show in folder", self._open_folder)
        self._footer_rest = [*self.plot_buttons.values(), self.folder_button]

    def _open_folder(self) -> None:
        if self.probing.folder is not None:
            self._context.interaction.open_path(self.probing.folder)

    def _follow(self) -> None:
        state, findings = self.probing.runner.state, self.probing.findings
        self.bar.set(state.share if state.is_active else 0.0)
        text = self.probing.problem or "\n".join(findings.summaries) or state.status
        self.status.set_text(text)
        self.status.recolour("error" if self.probing.problem or state.stage == "failed" else "text")
        self.start_button.set_enabled(not state.is_active)
        if state.is_active:
            self.stop_button.pack(side="right", padx=(0, GAP))
        else:
            self.stop_button.pack_forget()
        self.stop_button.set_enabled(state.stage == "running")
        self._offer()
        open_plot = self._plot_name if self._plot_name in findings.plots else next(iter(findings.plots), "")
        plot = findings.plots.get(open_plot)
        if plot is not self._shown_plot:  # progress is reported many times a second
            self._shown_plot = plot
            self.plot.show(probe_figure(plot) if plot is not None else Figure())
        for name, button in self.plot_buttons.items():
            button.set_enabled(name != open_plot)

    def _offer(self) -> None:
        findings = self.probing.findings
        size, steps = self.probing.batches
        labels = {
            RATE: f"Use {findings.rate:.2g}" if findings.rate else "",
            BATCH: f"Use batch {size} x {steps}" if findings.batch else "",
        }
        for button in (*self.take_buttons.values(), *self._footer_rest):
            button.pack_forget()
        usable = [name for name, label in labels.items() if label]
        self.start_button.restyle("plain" if usable else "primary")
        for name, label in labels.items():
            if label:
                self.take_buttons[name].restyle("primary" if name == usable[0] else "plain")
                self.take_buttons[name].configure(text=label)
                self.take_buttons[name].pack(side="left", padx=(0, GAP))
        rest = self._footer_rest if len(findings.plots) > 1 else self._footer_rest[-1:]
        for button in rest if findings.plots else ():
            button.pack(side="left", padx=(0, GAP))


def probe_figure(plot: ProbePlot) -> Figure:
    """Return the figure of a search: the measurements as dots, their course, and the marked value."""
    low, high = min(plot.x), max(plot.x)
    is_log = plot.is_log and low > 0
    x_axis = Axis(low, high if high > low else 10 * low if is_log else low + 1, is_log)

    def readout(at: float, _near: float) -> Readout:
        index = min(range(len(plot.x)), key=lambda n: abs(x_axis.share(plot.x[n]) - x_axis.share(at)))
        rows = [("measured", short_number(plot.dots[index]))]
        if plot.line is not plot.dots and index < len(plot.line):
            rows.append(("smoothed", short_number(plot.line[index])))
        return Readout(plot.x[index], f"{plot.x_label} {short_number(plot.x[index])}", [Column(plot.y_label, rows)])

    return Figure(
        frame=TITLED,
        lines=(
            Line("dots", "", "", Series(zip(plot.x, plot.dots, strict=False)), "chart_raw", "scattered"),
            Line("line", "", "", Series(zip(plot.x, plot.line, strict=False)), "chart_smooth"),
        ),
        x=x_axis,
        y=Axis(*y_range(plot)),
        x_ticks=() if plot.is_log else plot.x,
        title=plot.title,
        x_label=plot.x_label,
        y_label=plot.y_label,
        mark=Mark(plot.mark, plot.mark_words) if plot.mark is not None else None,
        readout=readout,
    )


def open_probe(context: Context) -> ProbeWindow:
    """Open the window; one that is already open is brought to the front, because it may be measuring."""
    return bring_to_front(context.root, ProbeWindow) or ProbeWindow(context)
