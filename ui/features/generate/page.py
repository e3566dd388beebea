"""The Generate page: images of any model, with LoRAs and embeddings, without a run."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from modules.config.records import inner_records, top_records
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.config.sections.model import Part
from modules.settings.field import FieldRecord
from modules.system.factories import load_factory
from modules.system.paths import from_root, session_file
from trainer.jobs.sample_images import parameters_text, read_settings
from ui.features.generate.cards import GridCard, ModelCard
from ui.features.generate.model import SampleSession
from ui.features.generate.sources import SampleSources
from ui.forms.context import Context
from ui.forms.field_problems import FieldProblems
from ui.forms.layout import FormView
from ui.forms.page import PageFrame
from ui.forms.records import Group, variant_records
from ui.forms.remedy_row import RemedyRow
from ui.forms.setting_pages import PageSpec
from ui.loop.jobs import JobState
from ui.widgets.card import Card, CardColumns
from ui.widgets.controls import Button
from ui.widgets.image_grid import ImageGrid, Tile
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.progress import ThinBar
from ui.widgets.scroll import ScrollFrame
from ui.widgets.theme import GAP, PAD
from ui.widgets.window import accept_paths

_LEFT_WIDTH = 430
_WIDE_FROM_PX = 1500  # of the page: its cards are in two columns
_PROMPT_FIELDS = ("prompt", "negative_prompt")
_EMPTY = "Press Generate. Images appear here as they are sampled.\nThe model stays loaded, so the next ones are fast."


class SamplePage:
    """The settings of the samples on the left, the images on the right."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self._context = context
        self._images: tuple[object, ...] = ()
        state_file = session_file().with_name("sample.json")
        self.session = SampleSession(context.form.config, context.pump.background, state_file=state_file)
        form = self.session.form
        self.page_context = replace(context, form=form, field_problems=FieldProblems(form, context.pump))
        self.sources = SampleSources(context, self.session, self._complete_card)
        self._add_body()
        self._add_right()
        self._add_buttons()
        context.pump.work_through((self, "cards"), self._cards())
        self.session.changed.subscribe(lambda: context.pump.redraw_soon((self, "state"), self._draw))
        self._was_training = context.session.is_active
        context.session.changed.subscribe(self._run_changed)
        context.pump.add_source(self.session.drain)
        self.frame.bind("<Destroy>", self._on_destroy, add="+")
        self.frame.bind_all("<Control-Return>", self._on_key, add="+")
        accept_paths(context.root, self.frame, self.sources.drop)
        self._draw()

    def on_show(self) -> None:
        """Look for results of runs."""
        self.sources.look()

    def generate(self) -> None:
        """Sample what is chosen."""
        self._take_cards()
        if self._context.session.is_active:
            self._context.notify("A run is training: samples slow it down, and need memory of their own.")
        problem = self.session.start()
        if problem:
            self.status.set_text(problem)
            self.status.recolour("error")

    def _run_changed(self) -> None:
        """Free the memory of a loaded model for a run that starts; look for its result when it has ended."""
        if self._context.session.is_active and not self.session.state.is_active:
            self.session.unload()
        if self._was_training and not self._context.session.is_active and self.frame.is_shown:
            self.sources.look()
        self._was_training = self._context.session.is_active

    # -- building

    def _add_body(self) -> None:
        context, px = self._context, self._context.theme.px
        self.body = Panel(self.frame, context.theme)
        self.body.grid(row=1, column=0, sticky="nsew", padx=(px(PAD + 4), px(PAD)))
        self.body.columnconfigure(0, minsize=px(_LEFT_WIDTH))
        self.body.bind("<Configure>", lambda _e: context.pump.redraw_soon((self, "columns"), self._fit), add="+")
        self.body.columnconfigure(1, weight=1)
        self.body.rowconfigure(0, weight=1)
        self.scroll = ScrollFrame(self.body, context.theme)
        self.scroll.grid(row=0, column=0, sticky="nsew", padx=(0, px(4)))
        self.cards = CardColumns(self.scroll.body, context.theme)
        self.cards.pack(fill="x")

    def _cards(self) -> Iterator[None]:
        """Build the cards on the left, one per `next`: together they would stall the window."""
        context, body, sources = self._context, self.cards, self.sources
        records = _prompt_records()
        prompt, image = (
            Group(f"sampling.prompts.0/{title}", title, tuple(r for r in records if _is_of_prompt(r) == is_of_prompt))
            for title, is_of_prompt in (("Prompt", True), ("Image", False))
        )
        self.prompt_view = FormView(body, self.page_context, lambda: (prompt,), max_columns=1)
        body.add(self.prompt_view, 0, gap_px=0)
        self.prompt_view.build()
        yield
        self.prompt_view.finish()
        for text in _texts_in(self.prompt_view):  # whose own Return would add a line
            text.bind("<Control-Return>", self._on_key)
        yield
        self.model_card = ModelCard(
            body, context, self.session, use_run=sources.use_run, use_result=sources.use_result,
            use_config=sources.use_config, use_demo=sources.use_demo,
        )  # fmt: skip
        body.add(self.model_card.card, 0)
        yield
        self.model_view = FormView(body, self.page_context, lambda: (self._model_group(),), max_columns=1)
        body.add(self.model_view, 0, gap_px=0)
        self.model_view.build()
        yield
        self.image_view = FormView(body, self.page_context, lambda: (image,), max_columns=1)
        body.add(self.image_view, 1, gap_px=0)
        self.image_view.build()
        yield
        self.image_view.finish()
        self.grid_card = GridCard(body, context, self.session)
        body.add(self.grid_card.card, 1)
        self.frame.hidden.subscribe(self._take_cards)

    def _model_group(self) -> Group:
        """Return the fields of the model and of its family."""
        config = self.session.form.config
        records = top_records(type(config))
        family_records = variant_records(config, records["model.family"])
        models = records["model.base_model"], *_part_files(config), records["sampling.model"]
        return Group("model", "Base model", (*models, *family_records))

    def _fit(self) -> None:
        """Put the cards on the left into two columns if the page is wide."""
        px = self._context.theme.px
        is_wide = self.body.winfo_width() >= px(_WIDE_FROM_PX)
        self.body.columnconfigure(0, minsize=px(_LEFT_WIDTH * (2 if is_wide else 1)))
        self.cards.set_wide(is_wide=is_wide)

    def _add_right(self) -> None:
        context, px = self._context, self._context.theme.px
        right = Card(self.body, context.theme)
        tk.Grid.grid_configure(right, row=0, column=1, sticky="nsew", pady=(0, px(PAD)))
        body = right.body
        body.columnconfigure(0, weight=1)
        body.rowconfigure(3, weight=1)
        self.bar = ThinBar(body, context.theme, on="card")
        self.bar.grid(row=0, column=0, sticky="ew", padx=(px(GAP), 0), pady=(px(2), px(6)))
        self.status = WrappedText(body, context.theme, on="card", colour="muted")
        self.status.grid(row=1, column=0, sticky="ew", padx=(px(GAP), 0), pady=(0, px(8)))
        self.grid = ImageGrid(body, context.theme, context.pump, tile_px=190, empty_text=_EMPTY, on_open=self.enlarge)
        choose = partial(context.links.choose_base_model, self.page_context)
        self.remedy = RemedyRow(body, context, {"base_model": choose, "repository": self._use_replacement})
        self.remedy.grid(row=2, column=0, sticky="ew", padx=(px(GAP), 0))
        self.grid.grid(row=3, column=0, sticky="nsew", padx=(px(GAP), 0))

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

    def enlarge(self, index: int) -> None:
        """Show an image large."""
        IdleSampleViewer(self._context, self.grid.tiles, index, self.sources.use_settings)

    def _complete_card(self) -> ModelCard:
        self._context.pump.finish((self, "cards"))
        return self.model_card

    def _take_cards(self) -> None:
        """Copy the choices of the cards to the session."""
        self._context.pump.finish((self, "cards"))
        adapters = [{"path": path, "strength": strength} for path, strength in self.model_card.loras.files]
        embeddings = [path for path, _ in self.model_card.embeddings.files]
        self.session.choose(adapters=adapters, embeddings=embeddings, **self.grid_card.choices())

    def _use_replacement(self) -> None:
        form, path = self.session.form, "model.base_model"
        form.edit(path, load_factory("trainer.preflight.model_files:successor_of")(form.value(path)))

    def _open_folder(self) -> None:
        folder = from_root(self.session.form.config.general.workspace_dir) / "samples"
        if folder.is_dir():
            self._context.interaction.open_path(folder)
        else:
            self._context.notify("There are no samples yet.")

    def _on_key(self, _event: object) -> str | None:
        if not self.frame.is_shown:
            return None
        self.generate()
        return "break"

    def _draw(self) -> None:
        state: JobState = self.session.state
        self.generate_button.set_enabled(not state.is_active)
        self.stop_button.set_enabled(state.stage == "running")
        self.unload_button.set_enabled(self.session.has_worker and not state.is_active)
        self.bar.set(state.share if state.is_active or state.stage == "finished" else 0.0)
        self.status.set_text(" ".join(filter(None, (state.status, *state.notes))))
        self.status.recolour("error" if state.stage == "failed" else "muted")
        self.remedy.show(state.failure)
        images = self.session.images
        empty_text = "" if state.is_active else _EMPTY
        if images != self._images or empty_text != self.grid.empty_text:
            self._images, self.grid.empty_text = images, empty_text
            self.grid.show([Tile(i.path, f"{i.caption}: {i.prompt}", "Grid" if i.is_grid else "") for i in images])

    def _on_destroy(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is self.frame:
            self.session.close()
            self._context.pump.forget((self, "state"))
            self._context.pump.forget((self, "cards"))
            self._context.pump.forget((self, "columns"))


def _texts_in(widget: tk.Misc) -> Iterator[tk.Text]:
    for child in widget.winfo_children():
        if isinstance(child, tk.Text):
            yield child
        yield from _texts_in(child)


def _prompt_records() -> tuple[FieldRecord, ...]:
    records = inner_records(SamplePrompt, "sampling.prompts.0")
    return tuple(_at_every_level(record) for record in records if not record.path.endswith(".enabled"))


def _part_files(config: Config) -> Iterator[FieldRecord]:
    """Yield the files of the model's parts, each named by its part."""
    for part in (p for p in config.family.parts if p.reads_file):
        [record] = (r for r in inner_records(Part, f"parts.{part.name}") if r.name == "file")
        yield replace(record, setting=replace(record.setting, label=f"{part.label}: {record.label.lower()}"))


def _is_of_prompt(record: FieldRecord) -> bool:
    return record.path.rpartition(".")[2] in _PROMPT_FIELDS


def _at_every_level(record: FieldRecord) -> FieldRecord:
    """Return a record that is shown at every level: this page is for trying out."""
    return replace(record, setting=replace(record.setting, level="basic"))


class IdleSampleViewer(ImageViewer):
    """The samples of the Generate page; `use(path)` copies the settings of a sample to the page."""

    def __init__(self, context: Context, tiles: Sequence[Tile], index: int, use: Callable[[Path], object]) -> None:
        self._context = context
        super().__init__(context.root, context.theme, context.pump, tiles, index, "Samples")
        self._use = use

    def copy_settings(self) -> None:
        """Put the settings of the image on the clipboard, in the form that other programs read."""
        settings = read_settings(self.tiles[self.index].path)
        self.clipboard_clear()
        self.clipboard_append(parameters_text(settings) if settings else self.tiles[self.index].caption)
        self._context.notify("The settings are on the clipboard.")

    def use_settings(self) -> None:
        """Copy the settings of the image to the page."""
        self._use(self.tiles[self.index].path)

    def _add_steps(self, footer: Panel) -> None:
        super()._add_steps(footer)
        row = Panel(footer, self.theme)
        row.pack(fill="x", pady=(self.theme.px(8), 0))
        Button(row, self.theme, "Copy settings", self.copy_settings).pack(side="left", padx=(0, GAP))
        Button(row, self.theme, "Use settings", self.use_settings).pack(side="left", padx=(0, GAP))
        Button(row, self.theme, "Show in folder", self._open_folder).pack(side="left")

    def _open_folder(self) -> None:
        self._context.interaction.open_path(self.tiles[self.index].path.parent)
