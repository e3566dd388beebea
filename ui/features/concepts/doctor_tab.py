"""The Doctor tab: what is probably wrong with the images and captions of the concept, and fixes that lose nothing."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from modules.config.schema import Config
from modules.data.doctor.finding import Finding, printable, short_name
from modules.data.doctor.fixes import FIXES, FixSpec, Step, apply, undo
from modules.data.doctor.report import CHECKS, figure_of, summary_of
from modules.data.scan import Scan
from modules.data.source_image import SourceImage
from modules.system.errors import DarkroomError
from modules.system.problem import count
from trainer.preflight.doctor import examine
from ui.features.concepts.task import Task, TaskBar
from ui.features.concepts.window import Editing
from ui.loop.background import Report
from ui.loop.interaction import Answer
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.image_grid import ImageGrid, Tile
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD

MAX_EXAMINED_AT_ONCE = 300  # images; more are examined on request
_MAX_FILES_SHOWN = 60
_MAX_STEPS_SHOWN = 12
_COLUMNS = (
    Column("#0", "Finding", 210, is_stretched=True),
    Column("file", "File", 150, is_stretched=True),
    Column("figure", "Figure", 110),
)
_LABELS = {"error": "Error", "warning": "Warning", "info": "Note"}
_TAGS = {"error": "error", "warning": "warning", "info": ""}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings of a concept, and the steps of each fix that applies."""

    findings: tuple[Finding, ...]
    fixes: tuple[tuple[FixSpec, tuple[Step, ...]], ...]


class DoctorTab:
    """A table of findings; the selected one with its files and what to do about it; and buttons for safe fixes."""

    def __init__(self, frame: Panel, editing: Editing) -> None:
        self.frame = frame
        self.task: Task[Diagnosis] = Task(editing.context.pump.background)
        self.applied_fixes: list[tuple[Step, ...]] = []  # fixes that can be undone, the last one last
        self.fix_buttons: dict[str, Button] = {}
        self._editing = editing
        self._examined_scan: object = None
        theme, px = editing.context.theme, editing.context.theme.px
        frame.rowconfigure(0, weight=0)
        frame.rowconfigure(2, weight=1)
        frame.columnconfigure(0, weight=3, uniform="doctor")
        frame.columnconfigure(1, weight=2, uniform="doctor")
        self.bar = TaskBar(frame, theme, start=self.start, stop=self.task.stop, label="Examine")
        self.bar.grid(row=0, column=0, columnspan=2, sticky="ew", padx=px(PAD), pady=(px(12), px(GAP)))
        self.fixes = Panel(frame, theme)
        self.fixes.grid(row=1, column=0, columnspan=2, sticky="ew", padx=px(PAD))
        self.undo_button = Button(self.fixes, theme, "Undo fix", self.undo_last)
        findings = Card(frame, theme, "Findings")
        tk.Grid.grid_configure(findings, row=2, column=0, sticky="nsew", padx=(px(PAD), px(PAD)))
        self.table = Table(findings.body, theme, _COLUMNS)
        self.table.pack(fill="both", expand=True, padx=(px(GAP), 0))
        self.table.on_events({"<<TreeviewSelect>>": self._show_selected})
        self._add_details(px)
        self.task.changed.subscribe(self._show)

    def follow(self) -> None:
        """Examine a small concept at once, and again when its files have changed."""
        scan = self._editing.scan
        if scan is self._examined_scan:
            return
        self._examined_scan = scan
        if isinstance(scan, Scan) and len(scan.images) <= MAX_EXAMINED_AT_ONCE:
            self.start()
        elif isinstance(scan, Scan):
            self.bar.show_idle(f"{count(len(scan.images), 'image')}: press Examine to decode all of them.")
        else:
            self.bar.show_unscanned(scan)

    def start(self) -> None:
        """Examine all images of the concept in the background."""
        scan = self._editing.scan
        images = scan.images if isinstance(scan, Scan) else ()
        self.task.start(partial(_examine, self._editing.context.form.config, self._editing.number, images))

    def close(self) -> None:
        """Cancel the work."""
        self.task.stop()

    def fix(self, name: str) -> None:
        """Show the steps of a fix, and do them if that is confirmed."""
        diagnosis = self.task.result
        spec, steps = next((f for f in (diagnosis.fixes if diagnosis else ()) if f[0].name == name), (FIXES[name], ()))
        if not steps or not self._is_confirmed(spec, steps):
            return
        try:
            applied = apply(steps)
        except DarkroomError as error:
            self._editing.context.show_error("Nothing was changed", error)
            return
        self.applied_fixes.append(applied)
        self._editing.context.notify(f"{spec.label}: {count(len(applied), 'file')}.")
        self._files_changed()

    def undo_last(self) -> None:
        """Undo the last fix."""
        if self.applied_fixes:
            try:
                undo(self.applied_fixes.pop())
            except DarkroomError as error:
                self._editing.context.show_error("The fix could not be undone", error)
            self._files_changed()

    def _add_details(self, px: Any) -> None:
        context = self._editing.context
        card = Card(self.frame, context.theme, "Details")
        tk.Grid.grid_configure(card, row=2, column=1, sticky="nsew", padx=(0, px(PAD)))
        self.reason = WrappedText(card.body, context.theme, on="card")
        self.reason.pack(fill="x", padx=(px(GAP), 0))
        self.advice = WrappedText(card.body, context.theme, colour="muted", on="card")
        self.advice.pack(fill="x", padx=(px(GAP), 0), pady=(px(GAP), 0))
        self.files = ImageGrid(
            card.body, context.theme, context.pump, tile_px=96, on_open=self._open_file,
            load=lambda path, side: self._editing.thumbnails.fit(path, side, side, enlarge="smooth"),
        )  # fmt: skip
        self.files.pack(fill="both", expand=True, padx=(px(GAP), 0), pady=(px(GAP), 0))

    def _show(self) -> None:
        diagnosis = self.task.result
        summary = (
            f"{summary_of(diagnosis.findings)}."
            if diagnosis is not None
            else "stopped."
            if self._examined_scan is not None
            else ""
        )
        self.bar.follow(self.task, f"{summary[:1].upper()}{summary[1:]}")
        if self.task.is_running:
            return
        self._show_findings(diagnosis.findings if diagnosis else ())
        self._show_fixes(diagnosis.fixes if diagnosis else ())

    def _show_findings(self, findings: Sequence[Finding]) -> None:
        self.table.set_rows([_row(f) for f in findings])
        self.table.select([0] if findings else [])
        self._show_selected()

    def _show_selected(self) -> None:
        diagnosis = self.task.result
        selected = [diagnosis.findings[n] for n in self.table.selected[:1]] if diagnosis else []
        for finding in selected:
            self.reason.set_text(printable(finding.reason))
            self.advice.set_text(printable(finding.fix))
            self.files.show([Tile(p, printable(p.name)) for p in finding.files[:_MAX_FILES_SHOWN] if p.suffix])
        if not selected:
            is_clean = diagnosis is not None and not diagnosis.findings
            self.reason.set_text("Nothing was found. The images and captions look fine." if is_clean else "")
            self.advice.set_text("")
            self.files.show(())

    def _show_fixes(self, fixes: Sequence[tuple[FixSpec, tuple[Step, ...]]]) -> None:
        context = self._editing.context
        for button in self.fix_buttons.values():
            button.destroy()
        self.fix_buttons.clear()
        self.undo_button.pack_forget()
        for spec, steps in fixes:
            label = f"{spec.label} ({len(steps):,})…"
            button = context.buttons.add(self.fixes, label, partial(self.fix, spec.name), spec.help)
            button.pack(pady=(0, GAP))
            self.fix_buttons[spec.name] = button
        if self.applied_fixes:
            self.undo_button.pack(side="left", pady=(0, GAP))

    def _is_confirmed(self, spec: FixSpec, steps: Sequence[Step]) -> bool:
        lines = [step.sentence for step in steps[:_MAX_STEPS_SHOWN]]
        more = len(steps) - _MAX_STEPS_SHOWN
        lines += [f"and {more:,} more"] if more > 0 else []
        message = "\n".join([spec.help, "", *lines, "", "Undo fix takes all of it back."])
        answers = (Answer("apply", f"Change {count(len(steps), 'file')}", is_default=True), Answer("cancel", "Cancel"))
        return self._editing.context.interaction.choose(spec.label, message, answers) == "apply"

    def _files_changed(self) -> None:
        self._examined_scan = None
        self._editing.scan_again()

    def _open_file(self, index: int) -> None:
        context = self._editing.context
        ImageViewer(context.root, context.theme, context.pump, self.files.tiles, index)


def _examine(config: Config, number: int, images: Sequence[SourceImage], report: Report) -> Diagnosis:
    concept = config.concepts[number].model_copy(update={"enabled": True})
    all_findings = examine(config.model_copy(update={"concepts": (concept,)}), report).findings
    findings = tuple(f for f in all_findings if not CHECKS[f.check].compares_concepts)
    names_files = concept.caption_source == "metadata"  # then a file must keep its name
    steps = {
        name: tuple(spec.steps(findings, images))
        for name, spec in FIXES.items()
        if not (names_files and name == "rename")
    }
    return Diagnosis(findings, tuple((FIXES[name], s) for name, s in steps.items() if s))


def _row(finding: Finding) -> tuple[str, tuple[str, ...], str]:
    more = f" and {len(finding.files) - 1:,} more" if len(finding.files) > 1 else ""
    name = short_name(finding.files[0]) if finding.files else ""
    label = f" {_LABELS[finding.severity]}: {CHECKS[finding.check].label}"
    return label, (f"{name}{more}", figure_of(finding)), _TAGS[finding.severity]
