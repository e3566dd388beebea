"""The window "Base model": a file that the user has, one that is found on this computer, or a download."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from modules.families.kinds.identify import identify
from modules.families.registry import FAMILIES
from modules.formats.published_files import is_repository
from modules.model_finder.finder import FoundModel
from modules.model_finder.programs import PROGRAMS
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import from_root
from modules.system.problem import format_size
from ui.features.base_model.model import PATH, Choice, Download, FoundModels, choice_of, choice_with_parts, find_parts
from ui.forms.context import Context
from ui.loop.interaction import Answer
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.entry import Entry
from ui.widgets.menu import make_menu, open_at
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

_COLUMNS = (
    Column("#0", "Model", 300, is_stretched=True),
    Column("label", "Family", 190),
    Column("form", "What it is", 200),
    Column("place", "Found in", 130, is_optional=True),
    Column("size", "Size", 80, "e"),
)
_CHECK = (
    "Check the name of the VAE: in several families it has the same form. With these files only tokenizers are "
    "downloaded, a few MB."
)
_EMPTY = (
    f"Models of {', '.join(p.label for p in PROGRAMS)} and of the Hugging Face cache are listed here.\n\n"
    "Are yours elsewhere? Add their folder. Do you have none yet? Download one, below: its size and licence come first."
)
_OWN_HINT = "A .safetensors, .ckpt or .gguf file, or a folder in diffusers' layout."


class BaseModelWindow(Window):
    """Each of the three ways has its own button; closing changes nothing."""

    is_single = True

    def __init__(
        self,
        context: Context,
        *,
        offers_family: bool,
        open_address: Callable[[str], object] = lambda address: load_factory("webbrowser:open")(address),
    ) -> None:
        super().__init__(context.root, context.theme, "Base model")
        self.found = FoundModels(context.form, context.preferences, context.pump.background)
        self.download = Download(context.form, context.pump.background)
        self.repository = TextVar(master=self)
        self._context = context
        self._offers_family, self._open_address = offers_family, open_address
        self._add_own()
        self._add_download()
        self._add_found()
        self.at_close(self.found.close, self.download.close)
        self.redraw_after(context.pump, self._follow, self.found.changed, self.download.changed)
        self.found.search()
        self.appear(980, 640)
        self.table.tree.focus_set()

    def choose_own(self, ask: Callable[..., Path | None], *kinds: object) -> None:
        """Ask for a file or a folder, and use it if it is a model."""
        now = from_root(str(self._context.form.value(PATH)) or ".")
        start = next((p for p in now.parents if p.is_dir()), Path.home())
        path = ask("Base model", start, *kinds)
        if path is not None:
            self._context.pump.background.run(partial(_read, path), self._use_model)

    def choose_found(self) -> None:
        """Use the selected model."""
        if (model := self.selected) is not None:
            self._use_model(model)

    def choose_download(self) -> None:
        """Use the repository in the entry."""
        self._use(partial(self.download.choose, self.repository.get().strip()))

    @property
    def selected(self) -> FoundModel | None:
        """The selected model."""
        indices = [index for index in self.table.selected if index < len(self.found.models)]
        return self.found.models[indices[0]] if indices else None

    # -- building

    def _section(self, title: str, side: str) -> Panel:
        px = self.theme.px
        section = Panel(self, self.theme)
        section.pack(side=side, fill="x", padx=px(PAD), pady=(px(PAD), 0))  # type: ignore[arg-type]
        Text(section, self.theme, title, role="heading").pack(side="left")
        return section

    def _add_own(self) -> None:
        interaction = self._context.interaction
        self._own_row = row = self._section("A file I have", "top")
        Button(row, self.theme, "Folder…", partial(self.choose_own, interaction.ask_folder)).pack(side="right")
        Button(row, self.theme, "File…", partial(self.choose_own, interaction.ask_file, ())).pack(
            side="right", padx=GAP
        )
        Text(row, self.theme, _OWN_HINT, colour="muted").pack(side="left", padx=(self.theme.px(14), 0))
        self.message = WrappedText(self, self.theme, colour="error")

    def _add_found(self) -> None:
        px = self.theme.px
        row = self._section("On this computer", "top")
        self.use_found = Button(row, self.theme, "Use it", self.choose_found, style="primary", width=92)
        self.use_found.pack(side="right")
        self.folder_button = Button(row, self.theme, "Add a folder…", self._add_folder)
        self.folder_button.pack(side="right", padx=GAP)
        self.search_button = Button(row, self.theme, "Stop", self._press_search)
        self.search_button.pack(side="right")
        self.status = WrappedText(self, self.theme, colour="muted")
        self.status.pack(fill="x", padx=px(PAD), pady=(px(4), 0))
        self.where = WrappedText(self, self.theme, colour="muted", role="small")
        self.where.pack(side="bottom", fill="x", padx=px(PAD), pady=(px(4), 0))
        self.table = Table(self, self.theme, _COLUMNS, empty_text=_EMPTY)
        self.table.pack(fill="both", expand=True, padx=px(PAD), pady=(px(8), 0))
        self.table.on_events(
            {
                "<Return>": self.choose_found,
                "<Double-Button-1>": self.choose_found,
                "<<TreeviewSelect>>": self._show_selected,
            }
        )

    def _add_download(self) -> None:
        px = self.theme.px
        footer = self.add_footer("Cancel")
        self.page_button = Button(footer, self.theme, "Open its page", self._open_page)
        self.page_button.pack(side="left")
        self.token_button = Button(footer, self.theme, "Enter a token…", self._enter_token)
        self.facts = WrappedText(self, self.theme, colour="muted")
        self.facts.pack(side="bottom", fill="x", padx=px(PAD), pady=(px(8), 0))
        row = self._section("Download", "bottom")
        self.use_download = Button(row, self.theme, "Use it", self.choose_download, width=92)
        self.use_download.pack(side="right")
        self.ask_button = Button(row, self.theme, "Size and licence", self._ask)
        self.ask_button.pack(side="right", padx=GAP)
        self.menu_button = Button(row, self.theme, "▾", self._open_menu, width=36)
        self.menu_button.pack(side="right")
        self.entry = Entry(row, self.theme, self.repository, on="window", placeholder="owner/model at Hugging Face")
        self.entry.pack(side="left", fill="x", expand=True, padx=(px(14), 6))
        self.entry.tk_entry.bind("<Return>", lambda _e: self._ask())
        self.repository.trace_add("write", lambda *_: self._soon())

    def repository_menu(self) -> tk.Menu:
        """Return the menu of the repositories that presets use."""
        menu = make_menu(self.menu_button, self.theme)
        for name, label in self.download.labels.items():
            menu.add_command(label=label, command=partial(self._take_repository, name))
        return menu

    # -- following

    def _open_menu(self) -> None:
        open_at(self.repository_menu(), self.menu_button, above=True)

    def _take_repository(self, name: str) -> None:
        self.repository.set(name)

    def _ask(self) -> None:
        self.download.ask(self.repository.get().strip())

    def _open_page(self) -> None:
        """Open the page of the repository, which has its terms to accept."""
        self._open_address(f"https://huggingface.co/{self.repository.get().strip()}")

    def _enter_token(self) -> None:
        self._context.actions.run("tokens")
        if self.winfo_exists():
            self._ask()

    def _press_search(self) -> None:
        if self.found.is_searching:
            self.found.stop()
        else:
            self.found.search()

    def _add_folder(self) -> None:
        title = "The folder of ComfyUI, A1111, Forge or StabilityMatrix, or any folder with models"
        folder = self._context.interaction.ask_folder(title, Path.home())
        if folder is not None:
            self.found.add_folder(folder)

    def _use_model(self, model: FoundModel) -> None:
        """Use a model; for a denoiser alone files of its other parts are searched for first."""
        if not (model.is_base_model and model.kind.is_denoiser):
            self._use(partial(choice_of, model))
            return
        self.status.set_text(f"Comparing files for the other parts of {model.path.name}…")
        find = partial(find_parts, self._context.form.config, model, list(self.found.part_files))
        self._context.pump.background.run(find, partial(self._use_denoiser, model))

    def _use_denoiser(self, model: FoundModel, files: Mapping[str, Path]) -> None:
        """Use a denoiser with the files that were found, if the user agrees, or else as a part of the base model."""
        if not self.winfo_exists():
            return
        if not files:
            self._use(partial(choice_of, model))
            return
        labels = FAMILIES[model.kind.family].part_labels
        lines = "\n".join(f"{labels[name]}: {file.name}" for name, file in files.items())
        answers = (
            Answer("cancel", "Cancel"),
            Answer("base", "Take them from the base model"),
            Answer("files", "Use these files", is_default=True),
        )
        message = f"{model.path.name} is one part of a model. Files that fit its other parts:\n\n{lines}\n\n{_CHECK}"
        match self._context.interaction.choose("Use these files for the other parts?", message, answers):
            case "files":
                self._use(partial(choice_with_parts, model, files))
            case "base":
                self._use(partial(choice_of, model))
            case _:
                self._soon()

    def _use(self, choose: Callable[[], Choice]) -> None:
        if not self.winfo_exists():
            return
        context = self._context
        try:
            choice = choose()
        except DarkroomError as error:
            self.message.set_text(str(error))
            self.message.pack(fill="x", padx=self.theme.px(PAD), pady=(self.theme.px(8), 0), after=self._own_row)
            return
        self.close()
        if self._offers_family and choice.family not in ("", context.form.config.family.name):
            context.links.train_on(choice.family, choice.settings)
            return
        context.form.replace(choice.applied_to(context.form.config))
        context.notify(choice.note)

    def _soon(self) -> None:
        self._context.pump.redraw_soon(self, self._follow)

    def _follow(self) -> None:
        found, selected = self.found, self.selected
        self.status.set_text(found.status)
        self.search_button.configure(text="Stop" if found.is_searching else "Search again")
        self.table.set_rows([_row(model) for model in found.models])
        if found.models:
            kept = next((n for n, m in enumerate(found.models) if selected and m.path == selected.path), 0)
            if self.table.selected != [kept]:
                self.table.select([kept])
        self._show_selected()
        if not self.repository.get():
            self.repository.set(self.download.proposed)
        self._show_facts()
        self.ask_button.set_enabled(self.download.may_ask)

    def _show_facts(self) -> None:
        name = self.repository.get().strip()
        self.download.estimate(name)
        failure = self.download.failure(name)
        self.facts.recolour("muted" if failure is None else "error")
        self.facts.set_text(self.download.text(name))
        self.page_button.set_enabled(is_repository(name))
        if self.download.needs_token(name):
            self.token_button.pack(side="left", padx=GAP)
        else:
            self.token_button.pack_forget()

    def _show_selected(self) -> None:
        model = self.selected
        reason = "" if model is None or model.is_base_model else model.kind.sentence
        self.where.set_text(f"{model.path}   {reason}" if model is not None else "")
        self.use_found.set_enabled(model is not None and model.is_base_model)


def _read(path: Path) -> FoundModel:
    return FoundModel(path, str(path), "", identify(path), 0)


def _row(model: FoundModel) -> tuple[str, tuple[str, ...], str]:
    values = (model.label or "Unknown", model.form, model.place, format_size(model.size_bytes))
    name = model.path.name if model.name == str(model.path) else model.name
    return f" {name}", values, "" if model.is_base_model else "faint"
