"""The view that describes a model file: what it is, which programs load it, its metadata."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from modules.system.paths import as_config_path
from trainer.jobs.inspect import Inspection, inspect_file
from ui.forms.context import Context
from ui.loop.background import Job, cancel
from ui.loop.past_runs import Result
from ui.widgets.controls import Button
from ui.widgets.fitted_text import shorten
from ui.widgets.link_columns import Link, LinkColumns
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import GAP

_HINT = "Drop a model, LoRA, VAE or embedding here, or choose one: what it is, which programs load it, its metadata."
_MAX_METADATA, _MAX_CHARS = 60, 160
_RESULT_PX, _RESULTS_PX = 340, 320
_USES = {
    "lora": (("lora-merge", "Merge into a model…"), ("lora-combine", "Add and subtract…"), ("lora-resize", "Resize…"),
             ("lora-blocks", "Strengths per block…"), ("convert", "Convert…")),
    "model": (("convert", "Convert…"), ("lora-merge", "Merge LoRAs into it…"), ("lora-extract", "Extract a LoRA…")),
}  # fmt: skip


class InspectView(Panel):
    """Call `open` with a path; `use(verb, path)` is called when the user wants the file in a tool."""

    def __init__(self, master: tk.Misc, context: Context, use: Callable[[str, Path], None]) -> None:
        super().__init__(master, context.theme, "card")
        self.inspection: Inspection | None = None
        self._context = context
        self._use = use
        self._job: Job | None = None
        self._view_state = context.view_state.of("inspect", dict[str, Path])
        px = context.theme.px
        WrappedText(self, context.theme, _HINT, on="card", colour="muted").pack(
            fill="x", padx=(px(12), px(GAP)), pady=(0, px(8))
        )
        buttons = Panel(self, context.theme, "card")
        buttons.pack(fill="x", padx=(px(12), px(GAP)))
        Button(buttons, context.theme, "Choose a file…", self._choose_file, on="card").pack(side="left", padx=(0, GAP))
        Button(buttons, context.theme, "Choose a folder…", self._choose_folder, on="card").pack(side="left")
        self.copy = Button(buttons, context.theme, "Copy metadata", self._copy, on="card")
        self.results = LinkColumns(self, context.theme, lambda key: self.open(Path(key)), min_column_px=_RESULT_PX)
        self._results: tuple[Result, ...] = ()
        self.bind("<Configure>", lambda _e: context.pump.redraw_soon(self, self._draw_results), add="+")
        self.name = Text(self, context.theme, on="card", role="heading")
        self.sentence = WrappedText(self, context.theme, on="card")
        self.uses = Panel(self, context.theme, "card")
        self.table = Panel(self, context.theme, "card")
        self.table.columnconfigure(1, weight=1)
        if path := self._view_state.get("path"):
            self.open(path)

    def open(self, path: Path) -> None:
        """Read a file's headers in the background and show what it is."""
        self._view_state["path"] = path
        cancel(self._job)
        self._job = self._context.pump.background.run(partial(inspect_file, path), self._show)

    def show_results(self, results: tuple[Result, ...]) -> None:
        """Offer the results of runs, until a file is shown."""
        self._results = results
        self._draw_results()

    def destroy(self) -> None:
        """Also drop what is still being read."""
        self._context.pump.forget(self)
        cancel(self._job)
        super().destroy()

    def _draw_results(self) -> None:
        px, width = self.theme.px, self.winfo_width()
        links = [Link(str(r.path), r.label, as_config_path(r.path.parent)) for r in self._results]
        groups = [("Results of your runs", links)]
        if (
            links
            and self.inspection is None
            and width > 1
            and self.results.show(groups, width - px(32), px(_RESULTS_PX))
        ):
            self.results.pack(fill="x", padx=(px(12), px(GAP)), pady=(px(16), 0))
        else:
            self.results.pack_forget()

    def _choose_file(self) -> None:
        kinds = (("Models", "*.safetensors *.ckpt *.pt *.bin"), ("All files", "*"))
        path = self._context.interaction.ask_file("Inspect a file", self._context.preferences.last_folder, kinds)
        if path is not None:
            self.open(path)

    def _choose_folder(self) -> None:
        path = self._context.interaction.ask_folder("Inspect a folder", self._context.preferences.last_folder)
        if path is not None:
            self.open(path)

    def _copy(self) -> None:
        if self.inspection is not None:
            self.clipboard_clear()
            self.clipboard_append("\n".join(f"{k}: {v}" for k, v in sorted(self.inspection.metadata.items())))
            self._context.notify("The metadata are on the clipboard.")

    def _show(self, inspection: Inspection) -> None:
        self.inspection = inspection
        self._draw_results()
        px = self.theme.px
        self.name.set_text(inspection.path.name)
        self.name.pack(anchor="w", padx=(px(12), px(GAP)), pady=(px(14), px(2)))
        self.sentence.set_text(inspection.kind.sentence)
        self.sentence.recolour("text" if inspection.is_sound else "error")
        self.sentence.pack(fill="x", padx=(px(12), px(GAP)))
        self._show_uses(inspection)
        for old in self.table.winfo_children():
            old.destroy()
        self.table.pack(fill="x", padx=(px(12), px(GAP)), pady=(px(10), 0))
        row = self._section(0, "Facts", inspection.facts)
        loads = [(x.program, f"{x.answer}   {x.remark}".rstrip()) for x in inspection.shown_loads]
        row = self._section(row, "Loaded completely by", loads)
        metadata = sorted(inspection.metadata.items())
        more = [("…", f"{len(metadata) - _MAX_METADATA} more: copy them")] if len(metadata) > _MAX_METADATA else []
        self._section(row, "Metadata", [*((k, _short(v)) for k, v in metadata[:_MAX_METADATA]), *more])
        if metadata:
            self.copy.pack(side="left", padx=(GAP, 0))
        else:
            self.copy.pack_forget()

    def _show_uses(self, inspection: Inspection) -> None:
        for old in self.uses.winfo_children():
            old.destroy()
        uses = _USES["lora"] if inspection.kind.kind == "lora" else _USES["model"] if inspection.kind.is_model else ()
        for verb, label in uses:
            button = Button(self.uses, self.theme, label, partial(self._use, verb, inspection.path), on="card")
            button.pack(side="left", padx=(0, GAP))
        if uses:
            self.uses.pack(fill="x", padx=(self.theme.px(12), self.theme.px(GAP)), pady=(self.theme.px(10), 0))
        else:
            self.uses.pack_forget()

    def _section(self, row: int, title: str, lines: Iterable[tuple[str, str]]) -> int:
        """Add a heading and its lines to the table, and return the next free row."""
        pairs = list(lines)
        if not pairs:
            return row
        px = self.theme.px
        Text(self.table, self.theme, title, role="strong", on="card", colour="label").grid(
            row=row, column=0, columnspan=2, sticky="w", pady=(px(10), px(4))
        )
        for number, (name, value) in enumerate(pairs, row + 1):
            Text(self.table, self.theme, _short(name, 44), on="card", colour="muted", role="small").grid(
                row=number, column=0, sticky="nw", padx=(0, px(16)), pady=px(1)
            )
            WrappedText(self.table, self.theme, value, on="card", role="small").grid(
                row=number, column=1, sticky="ew", pady=px(1)
            )
        return row + len(pairs) + 1


def _short(text: str, most: int = _MAX_CHARS) -> str:
    return shorten(text[: 2 * most], most)  # a value may have megabytes
