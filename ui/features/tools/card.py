"""The form of a tool, generated from the settings of its job, and the button that starts it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modules.families.kinds.identify import identify
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from trainer.jobs.spec import AdapterChoice, JobSpec
from ui.features.tools.model import OUTPUT, place_for, proposed_output
from ui.forms.context import Context
from ui.forms.section_form import SectionForm
from ui.loop.interaction import REPLACE_FILE, Answer
from ui.loop.jobs import JobRunner, JobState
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import GAP

_OVERWRITE = "overwrite"  # asked for when the job starts
_PROPOSED, _SETTINGS = "proposed", "settings"


class ToolForm(Panel):
    """The settings of a tool in `form`; `start` runs it."""

    def __init__(self, master: tk.Misc, context: Context, tool: JobSpec, runner: JobRunner) -> None:
        super().__init__(master, context.theme, "card")
        self.tool = tool
        self._context = context
        self._runner = runner
        self._view_state = context.view_state.of(f"tool {tool.name}", dict[str, Any])
        self._proposed_output = str(self._view_state.get(_PROPOSED, ""))
        px = context.theme.px
        help_text = WrappedText(self, context.theme, tool.description, on="card", colour="muted")
        help_text.pack(fill="x", padx=(px(12), px(GAP)), pady=(0, px(10)))
        settings = self._view_state.get(_SETTINGS, tool.settings())
        self.form = SectionForm(self, context, settings, without=(_OVERWRITE,), last=(OUTPUT,))
        self.form.pack(fill="x")
        self.form.model.changed.subscribe(self._follow_settings)
        footer = Panel(self, context.theme, "card")
        footer.pack(fill="x", padx=(px(12), 0), pady=(px(12), px(4)))
        self.button = Button(footer, context.theme, tool.button, self.start, style="primary", on="card", width=110)
        self.button.pack(side="left")
        self.problem = Text(footer, context.theme, on="card", colour="error")
        self.problem.pack(side="left", padx=px(12))

    def add_files(self, paths: Sequence[Path]) -> None:
        """Put dropped files where they fit: LoRAs into the LoRA fields, models into the model fields."""
        background = self._context.pump.background
        background.run(lambda: [(path, identify(path).kind == "lora") for path in paths], self._place)

    def start(self) -> None:
        """Run the tool; ask before a file is replaced."""
        try:
            settings = self.form.settings
            self.tool.require_valid(settings)
        except DarkroomError as error:
            self.problem.set_text(str(error))
            return
        self.problem.set_text("")
        out = from_root(str(getattr(settings, OUTPUT)))
        if out.exists():
            if not self._may_replace(out):
                return
            settings = settings.model_copy(update={_OVERWRITE: True})
        self._runner.start(self.tool, settings)

    def follow(self, state: JobState) -> None:
        """Follow the page's job: only one runs at a time."""
        self.button.set_enabled(not state.is_active)

    def _may_replace(self, out: Path) -> bool:
        answers = (Answer("keep", "Keep it", is_default=True), Answer("replace", "Replace it"))
        message = f"{out} already exists."
        return self._context.interaction.choose(REPLACE_FILE, message, answers, "warning") == "replace"

    def _place(self, kinds: Sequence[tuple[Path, bool]]) -> None:
        """Put identified files into the fields; a file without a place of its own replaces the first one."""
        for path, is_lora in kinds:
            field = place_for(self.tool, self.form.model.config, is_lora=is_lora)
            if field is None:
                self._context.notify(f"{path.name} is not a file for this tool.")
            elif field.kind == "list":
                files = self.form.model.value(field.path)
                self.form.set(field.path, [asdict(file) for file in (*files, AdapterChoice(str(path)))])
            else:
                self.form.set(field.path, str(path))

    def _follow_settings(self) -> None:
        """Keep the settings, and follow the input with the proposed name of the result."""
        settings = self._view_state[_SETTINGS] = self.form.model.config
        output = proposed_output(self.tool, settings)
        if getattr(settings, OUTPUT) == self._proposed_output != output:
            self._proposed_output = self._view_state[_PROPOSED] = output
            self.form.set(OUTPUT, output)
