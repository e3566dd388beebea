"""The form of a tool: a row for each field of its record, and the button that starts it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modules.families.kinds.identify import identify
from ui.features.tools.model import MissingValueError, ToolField, ToolSpec
from ui.forms.context import Context
from ui.forms.weighted_files import WeightedFiles
from ui.loop.interaction import Answer
from ui.loop.jobs import JobRunner, JobState
from ui.widgets.controls import Button, Choice, Switch
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import GAP
from ui.widgets.variables import FlagVar, TextVar, keep

_LABEL_WIDTH, _MOST_WIDTH = 150, 760
_LORAS = (("LoRA", "*.safetensors *.pt *.bin"), ("All files", "*"))
_MODELS = (("Models", "*.safetensors *.ckpt"), ("All files", "*"))
_PROPOSED = "proposed"  # beside the names of fields in what is kept
_SAVED = (("safetensors", "*.safetensors"),)


class ToolForm(Panel):
    """The fields of a tool by name, in `variables`; `start` runs it."""

    def __init__(self, master: tk.Misc, context: Context, tool: ToolSpec, runner: JobRunner) -> None:
        super().__init__(master, context.theme, "card")
        self.tool = tool
        self.variables: dict[str, Any] = {}  # a FlagVar for a switch, else a TextVar
        self.lists: dict[str, WeightedFiles] = {}
        self._context = context
        self._runner = runner
        self._kept = context.view_state.of(f"tool {tool.verb}", dict[str, Any])
        self._proposed = str(self._kept.get(_PROPOSED, ""))
        px = context.theme.px
        help_text = WrappedText(self, context.theme, tool.help, on="card", colour="muted")
        help_text.grid(row=0, column=0, columnspan=2, sticky="ew", padx=(px(12), px(GAP)), pady=(0, px(10)))
        self.columnconfigure(0, minsize=px(_LABEL_WIDTH))
        self.columnconfigure(1, weight=1)
        for row, field in enumerate(tool.fields, 1):
            self._add(row, field)
        footer = Panel(self, context.theme, "card")
        footer.grid(row=len(tool.fields) + 1, column=1, sticky="ew", pady=(px(12), px(4)))
        self.button = Button(footer, context.theme, tool.button, self.start, style="primary", on="card", width=110)
        self.button.pack(side="left")
        self.problem = Text(footer, context.theme, on="card", colour="error")
        self.problem.pack(side="left", padx=px(12))

    def values(self) -> dict[str, str]:
        """Return the values of all fields as text: a flag as "1" or nothing."""
        found = {}
        for name, variable in self.variables.items():
            value = variable.get()
            found[name] = value if isinstance(value, str) else "1" * value
        return found | {name: files.value for name, files in self.lists.items()}

    def add_files(self, paths: Sequence[Path]) -> None:
        """Put dropped files where they fit: LoRAs into the LoRA fields, models into those of models."""
        background = self._context.pump.background
        background.run(lambda: [(path, identify(path).kind == "lora") for path in paths], self._place)

    def start(self) -> None:
        """Run the tool; ask before a file is replaced."""
        values = self.values()
        out = Path(values.get(self.tool.output.name, ""))
        try:
            self.tool.command(values)
            overwrite = out.exists()
            command = self.tool.command(values, overwrite=overwrite)
        except MissingValueError as error:
            self.problem.set_text(str(error))
            return
        self.problem.set_text("")
        if overwrite and not self._may_replace(out):
            return
        self._runner.start(self.tool.title, command)

    def follow(self, state: JobState) -> None:
        """Follow the page's job: only one runs at a time."""
        self.button.set_enabled(not state.is_active)

    def _may_replace(self, out: Path) -> bool:
        answers = (Answer("keep", "Keep it", is_default=True), Answer("replace", "Replace it"))
        message = f"{out} already exists."
        return self._context.interaction.choose("Replace the file?", message, answers, "warning") == "replace"

    def _place(self, found: Sequence[tuple[Path, bool]]) -> None:
        """Put identified files into the fields; a file without a place of its own replaces the first one."""
        for path, is_lora in found:
            kinds = ("loras", "lora") if is_lora else ()
            fields = [f for f in self.tool.fields if f.kind in (*kinds, "model")]
            fields.sort(key=lambda f: not (is_lora and f.kind != "model"))
            field = next(
                (f for f in fields if f.kind == "loras" or not self.values()[f.name]), next(iter(fields), None)
            )
            if field is None:
                self._context.notify(f"{path.name} is not a file for this tool.")
            elif field.kind == "loras":
                self.lists[field.name].add([path])
            else:
                self.variables[field.name].set(str(path))
        self._propose()

    def _propose(self, *_names: object) -> None:
        """Propose a name for the result, unless the user has given one."""
        out = self.variables[self.tool.output.name]
        if out.get() == self._proposed:
            self._proposed = self._kept[_PROPOSED] = self.tool.proposed_output(self.values())
            out.set(self._proposed)

    def _files_changed(self, name: str) -> None:
        self._kept[name] = self.lists[name].value
        self._propose()

    def _add(self, row: int, field: ToolField) -> None:
        theme, px = self._context.theme, self._context.theme.px
        label = Text(self, theme, field.label, on="card", colour="label")
        label.grid(row=row, column=0, sticky="nw", padx=(px(12), px(12)), pady=(px(10), px(4)))
        control = self._control(field)
        is_wide = field.kind in ("model", "lora", "loras", "save_lora", "save_model", "save_any") or bool(field.hint)
        sticky = "ew" if is_wide and field.name not in ("rank", "conv_rank", "energy") else "w"
        tk.Grid.grid_configure(control, row=row, column=1, sticky=sticky, pady=px(4))
        if field.help:
            for widget in (label, control):
                self._context.tips.attach(widget, lambda: f"{field.label}\n{field.help}")

    def _control(self, field: ToolField) -> tk.Widget:
        theme = self._context.theme
        if field.kind == "loras":
            files = WeightedFiles(self, self._context, changed=lambda: self._files_changed(field.name))
            files.set(self._kept.get(field.name, ""))
            self.lists[field.name] = files
            return files
        if field.kind == "flag":
            flag = FlagVar(master=self, value=bool(field.default))
            self.variables[field.name] = flag
            keep(flag, self._kept, field.name)
            return Switch(self, theme, flag)
        variable = TextVar(master=self, value=field.default)
        self.variables[field.name] = variable
        keep(variable, self._kept, field.name)
        if field.kind == "choice":
            return Choice(self, theme, variable, field.choices, width=210)
        if field.kind == "text":
            return Entry(self, theme, variable, width=210, placeholder=field.hint)
        return self._path(field, variable)

    def _path(self, field: ToolField, variable: tk.StringVar) -> Panel:
        theme = self._context.theme
        frame = Panel(self, theme, "card")
        entry = Entry(frame, theme, variable, shows_end=True)
        entry.pack(side="left", fill="x", expand=True)
        buttons = [("…", self._browse)]
        if field.kind == "model":
            buttons = [("File…", self._browse), ("Folder…", self._browse_folder)]
        for label, press in buttons:
            button = Button(frame, theme, label, lambda press=press: press(field), on="card", width=36)  # type: ignore[misc]
            button.pack(side="left", padx=(6, 0))
        if field.kind in ("model", "lora"):
            variable.trace_add("write", self._propose)
        return frame

    def _browse(self, field: ToolField) -> None:
        interaction, start = self._context.interaction, self._start_of(field)
        if field.kind in ("model", "lora"):
            kinds = _LORAS if field.kind == "lora" else _MODELS
            chosen = interaction.ask_file(field.label, start if start.is_dir() else start.parent, kinds)
        else:
            chosen = interaction.ask_save_file(field.label, start, _SAVED)
        self._choose(field, chosen)

    def _browse_folder(self, field: ToolField) -> None:
        start = self._start_of(field)
        self._choose(
            field, self._context.interaction.ask_folder(field.label, start if start.is_dir() else start.parent)
        )

    def _choose(self, field: ToolField, path: Path | None) -> None:
        if path is not None:
            self.variables[field.name].set(str(path))
            self._context.preferences.change(last_folder=str(path.parent))

    def _start_of(self, field: ToolField) -> Path:
        now = str(self.variables[field.name].get())
        return Path(now) if now else self._context.preferences.last_folder
