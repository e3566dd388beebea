"""The Sample page: images of any model, with LoRAs and embeddings, without a run."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from modules.config.presets import list_presets
from modules.config.sections.evaluation import SamplePrompt
from modules.families.kinds.identify import identify
from modules.settings.field import FieldRecord
from modules.system.paths import from_root, session_file
from trainer.idle_sampling.request import AdapterChoice
from trainer.idle_sampling.saves import RunModels, saves_of
from ui.context import Context
from ui.editors.idle_sample_viewer import IdleSampleViewer
from ui.forms.field_problems import FieldProblems
from ui.forms.layout import FormView
from ui.forms.records import Group, inner_records, top_records
from ui.jobs.job import JobState
from ui.jobs.sampler import SampleSession
from ui.jobs.tools import split_file
from ui.pages.catalogue import PageSpec
from ui.pages.page import PageFrame
from ui.pages.sample_cards import GridCard, ModelCard
from ui.theme import GAP, PAD
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.dropping import accept_paths
from ui.widgets.image_grid import ImageGrid, Tile
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.progress import ThinBar
from ui.widgets.scroll import ScrollFrame

_LEFT_WIDTH = 430
_DEMO = "#demo"
_EMPTY = "Press Generate. Images appear here as they are sampled.\nThe model stays loaded, so the next ones are fast."
_MODEL_FIELDS = ("model.base_model", "model.vae_file", "model.clip_skip", "model.prediction_type")


class SamplePage:
    """What to sample on the left, the images on the right."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self._context = context
        self._shown: tuple[object, ...] = ()
        state_file = session_file().with_name("sample.json")
        self.session = SampleSession(context.form.config, context.pump.background, state_file=state_file)
        form = self.session.form
        self.own_context = replace(context, form=form, field_problems=FieldProblems(form, context.pump))
        self._add_body()
        self._add_right()
        self._add_buttons()
        context.pump.work_through((self, "cards"), self._cards())
        self.session.changed.subscribe(lambda: context.pump.redraw_soon((self, "state"), self._draw))
        context.session.changed.subscribe(self._make_room)
        context.pump.add_source(self.session.drain)
        self.frame.bind("<Destroy>", self._destroyed, add="+")
        self.frame.bind_all("<Control-Return>", self._by_key, add="+")
        accept_paths(context.root, self.frame, self.drop)
        self._is_shown = False
        self._draw()

    def shown(self) -> None:
        """Take shortcuts."""
        self._is_shown = True

    def hidden(self) -> None:
        """Take no shortcuts; sampling continues."""
        self._is_shown = False
        if hasattr(self, "grid_card"):  # the cards are built
            self._collect()

    def show_field(self, path: str) -> bool:
        """Return False: the page has no settings of the config."""
        return False

    def generate(self) -> None:
        """Sample what is chosen."""
        self._collect()
        if self._context.session.is_active:
            self._context.notify("A run is training: samples slow it down, and need memory of their own.")
        problem = self.session.start()
        if problem:
            self.status.set_text(problem)
            self.status.recolour("error")

    def _make_room(self) -> None:
        """Free the memory of a loaded model for a run that starts."""
        if self._context.session.is_active and not self.session.state.is_active:
            self.session.unload()

    def drop(self, paths: Sequence[Path]) -> None:
        """Take dropped files: models, LoRAs, embeddings, runs."""
        background = self._context.pump.background
        background.run(lambda: [(path, identify(path).kind) for path in paths], self._place)

    # -- building

    def _add_body(self) -> None:
        context, px = self._context, self._context.theme.px
        self.body = Panel(self.frame, context.theme)
        self.body.grid(row=1, column=0, sticky="nsew", padx=(px(PAD + 4), px(PAD)))
        self.body.columnconfigure(0, minsize=px(_LEFT_WIDTH))
        self.body.columnconfigure(1, weight=1)
        self.body.rowconfigure(0, weight=1)
        self.scroll = ScrollFrame(self.body, context.theme)
        self.scroll.grid(row=0, column=0, sticky="nsew", padx=(0, px(4)))
        self.scroll.body.columnconfigure(0, weight=1)

    def _cards(self) -> Iterator[None]:
        """Build the cards on the left, one per `next`: together they would stall the window."""
        context, px, body = self._context, self._context.theme.px, self.scroll.body
        prompt = Group("sampling.prompts.0", "Prompt", _prompt_records())
        self.prompt_view = FormView(body, self.own_context, lambda: (prompt,), max_columns=1)
        self.prompt_view.grid(row=0, column=0, sticky="new")
        self.prompt_view.build()
        yield
        self.prompt_view.finish()
        for text in _texts_in(self.prompt_view):  # whose own Return would add a line
            text.bind("<Control-Return>", self._by_key)
        yield
        self.model_card = ModelCard(body, context, self.session, self.use_run, self.use_config, self.use_demo)
        tk.Grid.grid_configure(self.model_card.card, row=1, column=0, sticky="new", pady=(0, px(PAD)))
        yield
        records = top_records(type(self.session.form.config))
        model = Group("model", "Base model", tuple(records[path] for path in _MODEL_FIELDS))
        self.model_view = FormView(body, self.own_context, lambda: (model,), max_columns=1)
        self.model_view.grid(row=2, column=0, sticky="new")
        self.model_view.build()
        yield
        self.grid_card = GridCard(body, context, self.session)
        tk.Grid.grid_configure(self.grid_card.card, row=3, column=0, sticky="new", pady=(0, px(PAD)))

    def _add_right(self) -> None:
        context, px = self._context, self._context.theme.px
        right = Card(self.body, context.theme)
        tk.Grid.grid_configure(right, row=0, column=1, sticky="nsew", pady=(0, px(PAD)))
        body = right.body
        body.columnconfigure(0, weight=1)
        body.rowconfigure(2, weight=1)
        self.bar = ThinBar(body, context.theme, on="card")
        self.bar.grid(row=0, column=0, sticky="ew", padx=(px(GAP), 0), pady=(px(2), px(6)))
        self.status = WrappedText(body, context.theme, on="card", colour="muted")
        self.status.grid(row=1, column=0, sticky="ew", padx=(px(GAP), 0), pady=(0, px(8)))
        self.grid = ImageGrid(body, context.theme, context.pump, tile_px=190, empty_text=_EMPTY, on_open=self.enlarge)
        self.grid.grid(row=2, column=0, sticky="nsew", padx=(px(GAP), 0))

    def _add_buttons(self) -> None:
        theme = self._context.theme
        buttons = self.frame.buttons
        self.folder_button = Button(buttons, theme, "Open folder", self._open_folder)
        self.unload_button = Button(buttons, theme, "Unload model", self.session.unload)
        self.stop_button = Button(buttons, theme, "Stop", self.session.stop, style="danger")
        self.generate_button = Button(buttons, theme, "Generate", self.generate, style="primary", width=110)
        for button in (self.folder_button, self.unload_button, self.stop_button, self.generate_button):
            button.pack(side="left", padx=(GAP, 0))
        tips = self._context.tips
        tips.attach(self.generate_button, lambda: "Generate (Ctrl+Return)")
        tips.attach(self.stop_button, lambda: "Stop after the present denoising step")
        tips.attach(self.unload_button, lambda: "End the sampler's process, which frees its memory")

    # -- doing

    def use_config(self) -> None:
        """Take the model of the config that is being edited."""
        self.session.use_config(self._context.form.config)
        self.model_card.refresh()

    def use_demo(self) -> None:
        """Take the demo model, which needs no download, with one of its prompts."""
        demo = next(preset for preset in list_presets() if preset.name == _DEMO)
        own = self.session.form.config.general
        config = demo.load().config
        self.session.use_config(config.model_copy(update={"general": own}), with_prompt=True)
        self.model_card.refresh()

    def use_run(self, folder: Path) -> None:
        """Take the model of a run, or of one of its backups, read in the background."""
        is_backup = folder.parent.name == "backup"
        run_dir = folder.parent.parent if is_backup else folder
        backup = str(folder) if is_backup else ""
        run = self._context.pump.background.run
        run(lambda: saves_of(run_dir), lambda found: self._show_run(run_dir, backup, found), self._no_run)

    def enlarge(self, index: int) -> None:
        """Show an image large."""
        IdleSampleViewer(self._context, self.grid.tiles, index, self._use_settings)

    def _show_run(self, run_dir: Path, backup: str, found: RunModels) -> None:
        self.session.use_config(found.config)
        self.session.choose(run=str(run_dir), backup=backup)
        last = next((save for save in reversed(found.saves) if save.step >= 0), next(iter(found.saves), None))
        if last is not None and not backup:
            if last.is_adapter:
                self.model_card.loras.set(f"{last.path}\t1")
            else:
                self.session.form.edit("model.base_model", str(last.path))
        if backup:
            self.model_card.loras.set("")
        self.model_card.show_run(found)

    def _no_run(self, error: Exception) -> None:
        self._context.notify(str(getattr(error, "message", error)))

    def _place(self, found: Sequence[tuple[Path, str]]) -> None:
        self._context.pump.finish((self, "cards"))
        for path, kind in found:
            if kind == "lora":
                self.model_card.loras.add([path])
            elif kind == "embedding":
                self.model_card.embeddings.add([path])
            elif (path / "config.json").is_file() and kind not in ("diffusers_folder", "checkpoint"):
                self.use_run(path)
            elif kind in ("diffusers_folder", "checkpoint"):
                self.session.form.edit("model.base_model", str(path))
            elif not self._use_settings(path):
                self._context.notify(f"{path.name} is not a model, a LoRA, an embedding, a run or a sample.")

    def _use_settings(self, path: Path) -> bool:
        has_any = self.session.use_settings_of(path)
        if has_any:
            self._context.notify("The settings of the image are taken.")
        return has_any

    def _collect(self) -> None:
        """Take what the cards hold into the session."""
        self._context.pump.finish((self, "cards"))
        adapters = []
        for line in self.model_card.loras.value.splitlines():
            path, strength = split_file(line)
            try:
                adapters.append(AdapterChoice(path, float(strength)))
            except ValueError:
                adapters.append(AdapterChoice(path, float("nan")))
        embeddings = tuple(split_file(line)[0] for line in self.model_card.embeddings.value.splitlines())
        self.session.choose(adapters=tuple(adapters), embeddings=embeddings, **self.grid_card.choices())

    def _open_folder(self) -> None:
        folder = from_root(self.session.form.config.general.workspace_dir) / "samples"
        if folder.is_dir():
            self._context.interaction.open_path(folder)
        else:
            self._context.notify("There are no samples yet.")

    def _by_key(self, _event: object) -> str | None:
        if not self._is_shown:
            return None
        self.generate()
        return "break"

    def _draw(self) -> None:
        state: JobState = self.session.state
        self.generate_button.set_enabled(not state.is_active)
        self.stop_button.set_enabled(state.stage == "running")
        self.unload_button.set_enabled(self.session.has_worker and not state.is_active)
        self.bar.set(state.share if state.is_active or state.stage == "finished" else 0.0)
        advice = state.failure.advice if state.failure else ""
        self.status.set_text(" ".join(filter(None, (state.status, advice, *state.notes))))
        self.status.recolour("error" if state.stage == "failed" else "muted")
        images = self.session.images
        if images != self._shown:
            self._shown = images
            self.grid.show([Tile(i.path, f"{i.caption}\n{i.prompt}", "Grid" if i.is_grid else "") for i in images])

    def _destroyed(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is self.frame:
            self.session.close()
            self._context.pump.forget((self, "state"))
            self._context.pump.forget((self, "cards"))


def _texts_in(widget: tk.Misc) -> Iterator[tk.Text]:
    for child in widget.winfo_children():
        if isinstance(child, tk.Text):
            yield child
        yield from _texts_in(child)


def _prompt_records() -> tuple[FieldRecord, ...]:
    records = inner_records(SamplePrompt, "sampling.prompts.0")
    return tuple(_always(record) for record in records if not record.path.endswith(".enabled"))


def _always(record: FieldRecord) -> FieldRecord:
    """Return a record that is shown at every level: this page is for trying out."""
    return replace(record, setting=replace(record.setting, level="basic"))
