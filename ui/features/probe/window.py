"""The window of the probe: what to measure, its progress with Stop, the plots, and buttons that apply the findings."""

from __future__ import annotations

from functools import partial

from trainer.probe.plot import Plot as ProbePlot
from trainer.probe.plot import y_range
from ui.features.probe.model import BATCH, RATE, Probing
from ui.forms.context import Context
from ui.loop.metric_curves import short_number
from ui.loop.series import Series
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
