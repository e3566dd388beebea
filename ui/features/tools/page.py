"""The Tools page: inspect and convert files, and the LoRA tools. Files can be dropped anywhere on it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from modules.families.kinds.identify import identify
from modules.settings.field import FieldRecord, Section, records_of
from modules.system.errors import DarkroomError
from modules.system.paths import as_config_path, from_root
from trainer.jobs.registry import JOBS
from trainer.jobs.spec import LORA, LORA_FILE, AdapterChoice, JobSpec, argument_of
from ui.features.tools.inspect_card import InspectView
from ui.forms.context import Context
from ui.forms.page import PageFrame
from ui.forms.remedy_row import RemedyRow
from ui.forms.section_form import SectionForm
from ui.forms.setting_pages import PageSpec
from ui.loop.interaction import REPLACE_FILE, Answer
from ui.loop.jobs import JobRunner, JobState
from ui.loop.past_runs import newest_results
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.progress import ThinBar
from ui.widgets.scroll import ScrollFrame
from ui.widgets.tabs import TabbedCard
from ui.widgets.theme import GAP, PAD
from ui.widgets.window import accept_paths

TOOLS: tuple[str, ...] = ("convert", "lora-merge", "lora-combine", "lora-resize", "lora-extract", "lora-blocks")
OUTPUT = "out"


def tools() -> tuple[JobSpec, ...]:
    """Return the records of the tools."""
    return tuple(JOBS[name] for name in TOOLS)


def proposed_output(spec: JobSpec, settings: Section) -> str:
    """Return a name for the result next to its input; empty without any."""
    value = getattr(settings, spec.input)
    first = (value[0].path if value else "") if isinstance(value, tuple) else value
    source = Path(first)
    if not source.name:
        return ""
    stem, suffix = source.name.removesuffix(source.suffix), ".safetensors" if source.suffix else ""
    ending = spec.ending if spec.ending.endswith(".safetensors") else f"{spec.ending}{suffix}"
    return as_config_path(source.with_name(f"{stem}{ending}"))


def place_for(spec: JobSpec, settings: Section, *, is_lora: bool) -> FieldRecord | None:
    """Return the field for a dropped model or LoRA: a list or an empty field, else the first that may hold it."""
    fields = [record for record in records_of(spec.settings) if _accepts(spec, record, is_lora=is_lora)]
    fields.sort(key=lambda record: is_lora != _is_for_loras(spec, record))
    free = (record for record in fields if record.kind == "list" or not getattr(settings, record.path))
    return next(free, next(iter(fields), None))


def _accepts(spec: JobSpec, record: FieldRecord, *, is_lora: bool) -> bool:
    if _is_for_loras(spec, record):
        return is_lora
    return record.setting.path_kind == "model"


def _is_for_loras(spec: JobSpec, record: FieldRecord) -> bool:
    return argument_of(spec.settings, record.path).metavar in (LORA, LORA_FILE)


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
        self.problem = WrappedText(footer, context.theme, on="card", colour="error")
        self.problem.pack(side="left", fill="x", expand=True, padx=px(12))

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


_INSPECT = "Inspect"
_WIDE = 1150


class ToolsPage:
    """A tab for each tool; below it the job that runs, and its result."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.runner = JobRunner()
        self.forms: dict[str, ToolForm] = {}
        self._context = context
        px = context.theme.px
        self.scroll: ScrollFrame = self.frame.add_scroll(context)
        self.tabs = TabbedCard(self.scroll.body, context.theme, kept=context.view_state.of("tools", dict))
        tk.Grid.grid_configure(self.tabs, row=0, column=0, sticky="new", pady=(0, px(PAD)))
        chosen = context.view_state.of("tools", dict[str, str]).get("chosen", _INSPECT)
        self.inspect = InspectView(self._add_tab(_INSPECT), context, self._open_in)
        self.inspect.pack(fill="both", expand=True)
        self._views = {tool.name: self._add_tab(tool.label) for tool in tools()}
        for verb, view in self._views.items():
            view.bind("<Map>", partial(self._build_soon, verb), add="+")
        self.tabs.choose(chosen)
        self.job_card = Card(self.scroll.body, context.theme, "Result")
        tk.Grid.grid_configure(self.job_card, row=1, column=0, sticky="new", pady=(0, px(PAD)))
        self.job = JobPanel(self.job_card.body, context, self.runner, self.inspect_file)
        self.job.pack(fill="x", padx=(px(12), 0))
        self.scroll.bind("<Configure>", lambda _e: context.pump.redraw_soon((self, "width"), self._arrange), add="+")
        self.runner.changed.subscribe(self._follow)
        context.pump.add_source(self.runner.drain)
        self.frame.bind("<Destroy>", self._on_destroy, add="+")
        accept_paths(context.root, self.frame, self.drop)
        self._follow()

    def on_show(self) -> None:
        """Look for results of runs to offer."""
        places = self._context.workspaces()
        self._context.pump.background.run(lambda: newest_results(places), self.inspect.show_results)

    def choose(self, title: str) -> None:
        """Show a tool by the title of its tab."""
        self.tabs.choose(title)

    def drop(self, paths: Sequence[Path]) -> None:
        """Pass dropped files to the selected tool, or inspect the first one."""
        tool = next((tool for tool in tools() if tool.label == self.tabs.shown), None)
        if tool is None:
            self.inspect_file(paths[0])
        else:
            self.form(tool.name).add_files(paths)

    def inspect_file(self, path: Path) -> None:
        """Inspect a file or folder."""
        self.tabs.choose(_INSPECT)
        self.inspect.open(path)

    def form(self, verb: str) -> ToolForm:
        """Return the form of a tool; it is built when it is first needed."""
        if verb not in self.forms:
            form = ToolForm(self._views[verb], self._context, JOBS[verb], self.runner)
            form.pack(fill="both", expand=True)
            form.follow(self.runner.state)
            self.forms[verb] = form
        return self.forms[verb]

    def _build_soon(self, verb: str, _event: object) -> None:
        # Not at once: Tk calls this while it places children.
        self._context.pump.redraw_soon((self, verb), partial(self._build, verb))

    def _build(self, verb: str) -> None:
        self.form(verb)

    def _add_tab(self, title: str) -> Panel:
        return self.tabs.add(title, is_offered=True)

    def _open_in(self, verb: str, path: Path) -> None:
        """Use an inspected file in a tool."""
        form = self.form(verb)
        self.tabs.choose(form.tool.label)
        form.add_files([path])

    def _follow(self) -> None:
        self._context.pump.redraw_soon((self, "job"), partial(self._draw))

    def _draw(self) -> None:
        state = self.runner.state
        is_other_stage = state.stage != self.job.stage
        self.job.draw(state)
        self._arrange()
        if is_other_stage and state.stage != "idle":
            self.scroll.see(self.job_card)  # below the fields of a tool, its start and its result may be out of view
        for form in self.forms.values():
            form.follow(state)

    def _arrange(self) -> None:
        """Place the result next to the tool if there is room, else below it."""
        px, body = self._context.theme.px, self.scroll.body
        is_wide = self.scroll.winfo_width() >= px(_WIDE)
        body.columnconfigure(0, weight=3 if is_wide else 1, uniform="columns" if is_wide else "")
        body.columnconfigure(1, weight=2 if is_wide else 0, uniform="columns" if is_wide else "")
        if self.runner.state.stage == "idle" and not is_wide:
            self.job_card.grid_remove()
            return
        place = {"row": 0, "column": 1, "padx": (px(PAD), 0)} if is_wide else {"row": 1, "column": 0, "padx": 0}
        tk.Grid.grid_configure(self.job_card, sticky="new", **place)

    def _on_destroy(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is self.frame:
            self.runner.close()
            for key in ("job", "width", *self._views):
                self._context.pump.forget((self, key))


_COLOURS = {"idle": "muted", "finished": "good", "failed": "error", "stopped": "muted"}
_NOTHING_YET = "What a tool writes, and how exact it is, is shown here."


class JobPanel(Panel):
    """Call `draw` with a state."""

    def __init__(self, master: tk.Misc, context: Context, runner: JobRunner, inspect: Callable[[Path], None]) -> None:
        super().__init__(master, context.theme, "card")
        self._context = context
        self._inspect = inspect
        self._paths: tuple[Path, ...] = ()
        self.stage = "idle"
        px = context.theme.px
        head = Panel(self, context.theme, "card")
        head.pack(fill="x")
        self.title = Text(head, context.theme, role="strong", on="card")
        self.title.pack(side="left")
        self.stop = Button(head, context.theme, "Stop", runner.stop, on="card", style="danger")
        self.bar = ThinBar(self, context.theme, on="card")
        self.bar.pack(fill="x", pady=px(GAP))
        self.status = WrappedText(self, context.theme, on="card")
        self.status.pack(fill="x")
        self.notes = WrappedText(self, context.theme, on="card", colour="muted", role="small")
        self.notes.pack(fill="x", pady=(px(4), 0))
        self.remedy = RemedyRow(self, context)
        self.remedy.pack(fill="x")
        self.buttons = Panel(self, context.theme, "card")
        self.open_folder = Button(self.buttons, context.theme, "Show in folder", self._open_folder, on="card")
        self.inspect = Button(self.buttons, context.theme, "Inspect the result", self._inspect_result, on="card")
        self.open_folder.pack(side="left", padx=(0, GAP))
        self.inspect.pack(side="left")

    def draw(self, state: JobState) -> None:
        """Show a state of a job."""
        self._paths, self.stage = state.paths, state.stage
        self.title.set_text(state.title)
        self.status.set_text(state.status or _NOTHING_YET)
        self.status.recolour(_COLOURS.get(state.stage, "text"))
        lines = [*(str(path) for path in state.paths), *state.notes]
        self.notes.set_text("\n".join(lines))
        self.remedy.show(state.failure)
        self.stop.set_enabled(state.stage == "running")
        if state.is_active:
            self.bar.set(state.share)
            self.bar.pack(fill="x", pady=self.theme.px(GAP), before=self.status)
            self.stop.pack(side="right")
        else:
            self.bar.pack_forget()
            self.stop.pack_forget()
        if state.stage == "finished":
            self.buttons.pack(anchor="w", pady=(self.theme.px(10), self.theme.px(4)))
        else:
            self.buttons.pack_forget()

    def _open_folder(self) -> None:
        self._context.interaction.open_path(self._paths[0].parent)

    def _inspect_result(self) -> None:
        self._inspect(self._paths[0])
