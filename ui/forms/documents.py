"""Opening and saving configs and presets; questions go through `Interaction`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from modules.config.codec import LoadedConfig, export_file, lists_to_confirm, save_file
from modules.config.imports.any_file import CONFIG_SUFFIXES, load_any, load_any_text
from modules.config.list_files import LISTS
from modules.config.presets import BUILT_IN_DIR, DEMO, Preset, list_presets, save_preset
from modules.config.schema import Config
from modules.settings.edit import get_path, replace_value
from modules.system.errors import DarkroomError
from modules.system.paths import from_root, safe_name, user_presets_dir
from modules.system.problem import Problem, count
from ui.forms.card_fit import CardFit
from ui.forms.changes import describe_unsaved
from ui.forms.findings import Findings
from ui.forms.model import Document, Draft, FormModel, Source
from ui.forms.preferences import Preferences
from ui.loop.background import Background, Job
from ui.loop.interaction import Answer, FileKind, Interaction, failure_of
from ui.widgets.notices import Notice, Notices, Reply

CONFIG_KINDS: tuple[FileKind, ...] = (("Config", "*.json"),)
LOADED_KINDS: tuple[FileKind, ...] = (
    ("Configs and LoRA files", " ".join(f"*{s}" for s in CONFIG_SUFFIXES)),
    *CONFIG_KINDS,
)
NOTHING_IMPORTED = "Nothing was imported"
_UNDO_NOTICE = "replaced"  # the key of the notice of a load over unsaved changes
_KEPT_LISTS = ("concepts", "sampling.prompts")
_KEPT = ("output.destination", "output.trigger_words", "general.workspace_dir", "general.cache_dir")
Notify = Callable[[str], None]


class Documents:
    """The commands of the top bar: presets, load, save, save as, export."""

    def __init__(
        self,
        form: FormModel,
        interaction: Interaction,
        findings: Findings,
        preferences: Preferences,
        notices: Notices,
        notify: Notify,
        card_fit: CardFit,
        background: Background,
    ) -> None:
        self._form = form
        self._interaction = interaction
        self._findings = findings
        self._preferences = preferences
        self._notices = notices
        self._notify = notify
        self._card_fit = card_fit
        self._background = background
        self._reading: Job | None = None  # of a file or a text that replaces the config
        self._loaded_document: Document | None = None  # as it was loaded over unsaved changes
        self._confirmed_lists: set[Path] = set()
        form.changed.subscribe(self._withdraw_undo_offer)
        form.loaded.subscribe(self._drop_reading)  # also the config of a run or of the queue: the newest one stays

    def presets(self) -> list[Preset]:
        """Return the current presets."""
        return list_presets()

    def open_preset(self, preset: Preset) -> None:
        """Load a preset. The user's concepts and sample prompts stay if the preset has none.

        So do then the edited folders and the edited name of the result, if it is a built-in one, which is fitted to the
        memory that is free on the card. One of the user's own stays as it is.
        """
        loaded = preset.load()
        if self._is_refused(loaded, preset.name):
            return
        has_images = bool(loaded.config.concepts)  # to which its name and folders belong
        edits = _KEPT if preset.is_built_in and not has_images else ()
        kept = [*self._lists_to_keep(loaded.config), *filter(self._form.differs, edits)]
        source = Source(preset.name, preset.path, "built_in" if preset.is_built_in else "preset")
        self._load(loaded, source, kept)
        records = ((path, self._form.record(path)) for path in kept)
        labels = ", ".join(record.label if record is not None else path for path, record in records)
        note = f" Kept from before: {labels}." if kept else ""
        loaded_text = f"Loaded {preset.name}.{note}"
        self._notify(loaded_text)
        self._card_fit.follow_load(loaded_text, self._apply_fit)

    def _apply_fit(self, config: Config) -> None:
        """Apply a fit to the card as an edit of its own; the offer to undo the load stays."""
        offered, self._loaded_document = self._loaded_document, None
        self._form.replace(config)
        self._loaded_document = self._form.document if offered is not None else None

    def open_demo(self) -> None:
        """Load the preset of the demo, if it is shipped."""
        demo = _demo_preset()
        if demo is None:
            self._notify(f"The preset {DEMO} is missing.")
        elif self._form.source.path != demo.path or self._form.is_changed:
            self.open_preset(demo)

    def open_file(self, path: Path | None = None) -> None:
        """Load a config of Darkroom or another program: the given file, or one the user chooses."""
        path = path or self._interaction.ask_file("Load a config", self._preferences.last_folder, LOADED_KINDS)
        if path is None:
            return
        self._preferences.change(last_folder=str(path.parent))  # also of a file that turns out not to be a config

        def load(loaded: LoadedConfig) -> None:
            if not self._is_refused(loaded, path.name):
                self._load(loaded, _source_of(path))
                self._preferences.note_file(path)
                self._notify(f"Loaded {path.name}.")

        self._read(partial(load_any, path), load, path.name)

    def open_text(self, text: str, then: Callable[[bool], None]) -> None:
        """Load a config that was pasted as JSON, with the same report as a file; `then` gets whether it is one."""

        def load(loaded: LoadedConfig) -> None:
            is_refused = self._is_refused(loaded, "The text")
            if not is_refused:
                self._load(loaded, Source("Pasted config"))
                self._notify("Loaded the pasted config.")
            then(not is_refused)

        self._read(partial(load_any_text, text, name="The text"), load, "the pasted config")

    def _read(self, read: Callable[[], LoadedConfig], load: Callable[[LoadedConfig], None], name: str) -> None:
        """Read a config in the background: those of other programs are read with their folders of images."""

        def finish(loaded: LoadedConfig) -> None:
            self._drop_reading()
            load(loaded)

        def fail(error: Exception) -> None:
            self._drop_reading()
            self._show_failure(f"Could not load {name}", error)

        self._drop_reading()
        self._form.awaited = name
        self._notify(f"Loading {name}…")
        self._reading = self._background.run(read, finish, fail)

    def _drop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading, self._form.awaited = None, ""
            self._notify("")  # no longer "Loading …", also where nothing is loaded

    def open_config(self, loaded: LoadedConfig, name: str) -> None:
        """Load a config that was made from the current one, as a new document with a report. It can be undone."""
        self._load(loaded, Source(name))
        self._notify(f"Loaded {name}. Ctrl+Z undoes it.")

    def open_recent(self, path: Path) -> None:
        """Load a recent file; a missing one is removed from the list."""
        if path.exists():
            self.open_file(path)
        else:
            self._preferences.forget_file(path)
            self._notify(f"{path.name} was not found in {path.parent} and has been removed from the list.")

    def open_dropped(self, paths: Sequence[Path]) -> bool:
        """Load the config among dropped files; return whether there was one."""
        config = next((p for p in paths if p.suffix.lower() in CONFIG_SUFFIXES and not p.is_dir()), None)
        if config is not None:
            self.open_file(config)
        return config is not None

    def save(self) -> None:
        """Save to the loaded file; for a built-in preset or a new config, run "Save as"."""
        source = self._form.source
        if source.path is None or source.kind in ("built_in", "none"):
            self.save_as_file()
        else:
            self._write(source)

    def save_as_file(self) -> None:
        """Save to a file the user chooses; a copy of a preset is proposed among the user's presets."""
        source = self._form.source
        path = self._ask_destination("Save the config", self._folder_for(source))
        if path is not None:
            is_preset = path.parent.resolve() == user_presets_dir().resolve()
            self._write(Source(path.stem, path, "preset" if is_preset else "file"))

    def _ask_destination(self, title: str, folder: Path, *, ending: str = "") -> Path | None:
        """Ask for a file; one of the built-in presets is refused."""
        stem = safe_name(self._form.source.name.lstrip("#"))
        path = self._interaction.ask_save_file(title, folder / f"{stem}{ending}.json", CONFIG_KINDS)
        if path is None:
            return None
        path = path if path.suffix else path.with_suffix(".json")
        if _is_built_in(path):
            error = DarkroomError(f"{path.name} is a built-in preset.", advice="Choose another name or another folder.")
            self._show_failure("Built-in presets cannot be overwritten", error)
            return None
        return path

    def _folder_for(self, source: Source) -> Path:
        """Return the folder in which a copy of the config is proposed."""
        if source.kind == "built_in":
            with suppress(OSError):
                user_presets_dir().mkdir(parents=True, exist_ok=True)  # a dialog opens elsewhere if it is missing
                return user_presets_dir()
        elif source.path and source.kind != "none":
            return source.path.parent
        return self._preferences.last_folder

    @property
    def results_folder(self) -> Path:
        """The folder of the config's result, if it exists; else that of the last dialog."""
        folder = from_root(self._form.config.output.destination or ".").parent
        return folder if folder.is_dir() else self._preferences.last_folder

    def export(self) -> None:
        """Write a copy as one file that includes concepts and sample prompts; the edited document stays the same."""
        path = self._ask_destination("Export as one file", self._preferences.last_folder, ending=" (complete)")
        if path is None:
            return
        try:
            older = export_file(self._form.config, path)
        except OSError as error:
            self._show_failure(f"{path.name} could not be written", error)
            return
        self._notify(f"Exported {path.name}.{_backup_note(older)}")

    def import_presets(self, folder: Path | None = None) -> None:
        """Import a folder of presets (OneTrainer's `training_presets`) as the user's own, with one report."""
        from modules.config.own_presets import import_presets

        title = "Import presets (a folder such as OneTrainer's training_presets)"
        folder = folder or self._interaction.ask_folder(title, self._preferences.last_folder)
        if folder is None:
            return
        try:
            imported = import_presets(folder)
        except (DarkroomError, OSError) as error:
            self._show_failure("The presets could not be imported", error)
            return
        if not imported.problems:
            advice = "Choose the folder that contains the files."
            problem = Problem("", f"No presets found in {folder}.", "warning", advice)
            self._findings.show(NOTHING_IMPORTED, [problem], self._form.config)
            return
        self._findings.show(f"Presets from {folder.name}", imported.problems, self._form.config)
        self._notify(f"{count(len(imported.presets), 'preset')} imported from {folder.name}. See the preset menu.")

    def save_as_preset(self) -> None:
        """Save as a user preset under a name the user enters."""
        proposed = self._form.source.name.lstrip("#")
        name = self._interaction.ask_text("Save as a preset", "Preset name", proposed)
        if name is None or not self._may_replace(name):
            return
        try:
            preset = save_preset(self._form.config, name)
        except (DarkroomError, OSError) as error:
            self._show_failure("The preset could not be saved", error)
            return
        self._form.mark_saved(Source(preset.name, preset.path, "preset"))
        self._notify(f"Saved the preset {preset.name}.")

    def _may_replace(self, name: str) -> bool:
        existing = next(
            (p for p in list_presets() if not p.is_built_in and p.name == safe_name(name.lstrip("# "))), None
        )
        if existing is None or existing.path == self._form.source.path:
            return True
        answers = (Answer("replace", "Replace"), Answer("cancel", "Cancel", is_default=True))
        question = f"A preset named {existing.name} already exists."
        return self._interaction.choose("Replace the preset?", question, answers) == "replace"

    def _write(self, source: Source) -> None:
        assert source.path is not None
        try:
            if source.kind == "preset":  # which is one file
                older = export_file(self._form.config, source.path)
            elif self._may_write_lists(source.path):
                older = save_file(self._form.config, source.path, confirmed=self._confirmed_lists)
            else:
                return
        except OSError as error:
            self._show_failure(f"{source.path.name} could not be saved", error)
            return
        self._form.mark_saved(source)
        if source.kind == "file":
            self._preferences.note_file(source.path)
        self._notify(f"Saved {source.path.name}.{_backup_note(older)}")

    def _may_write_lists(self, path: Path) -> bool:
        """Ask about each list file outside of the config's folder, or of another program; once for each path.

        The list can be stored inside the config instead.
        """
        for file in lists_to_confirm(self._form.config, path):
            if file.path in self._confirmed_lists:
                continue
            answers = (
                Answer("cancel", "Cancel"),
                Answer("write", "Write that file"),
                Answer("inside", "Keep them inside the config", is_default=True),
            )
            title = f"Write the {file.kind} to that file?"
            match self._interaction.choose(title, f"{file} Saving also writes that file.", answers, "warning"):
                case "write":
                    self._confirmed_lists.add(file.path)
                case "inside":
                    self._form.edit(next(kind.name_path for kind in LISTS if kind.name == file.kind), "")
                case _:
                    return False
        return True

    def _is_refused(self, loaded: LoadedConfig, name: str) -> bool:
        """Return whether loading found no config; if so, report it and keep the current one."""
        is_refused = any(p.severity == "error" and not p.path for p in loaded.problems)
        if is_refused:
            self._findings.show(f"{name} could not be loaded", loaded.problems, self._form.config)
        return is_refused

    def _load(self, loaded: LoadedConfig, source: Source, kept: Sequence[str] = ()) -> None:
        """Load a config in place of the current one, of which the values at some paths are kept, as unsaved changes.

        If there were other unsaved changes, this is reported with an offer to undo it.
        """
        before, replaced = self._form.config, self._unsaved_words(kept)
        self._form.load(_with_values_of(before, loaded.config, kept), source, baseline=loaded.config)
        self._findings.show(f"Loaded {source.name}", loaded.problems, self._form.config, keeps_notes=True)
        self._offer_undo(f"Loaded {source.name}.", replaced)

    def open_session(self, document: Document, drafts: Mapping[str, Draft]) -> None:
        """Replace the current config by the unsaved work of another window."""
        replaced = self._unsaved_words()
        self._form.restore(document, drafts)
        self._offer_undo(f"Opened {document.source.name}.", replaced)

    def _offer_undo(self, done: str, replaced: str) -> None:
        """Offer to undo a load that replaced unsaved changes."""
        if replaced:
            self._loaded_document = self._form.document
            text = f"{done} It replaced {replaced}."
            self._notices.show(Notice(_UNDO_NOTICE, text, (Reply("Undo", self._undo_load),), until_start=True))

    def _withdraw_undo_offer(self) -> None:
        """Withdraw the offer to undo a load after an edit, which an undo would now revert instead."""
        if self._loaded_document is not None and self._form.document is not self._loaded_document:
            self._loaded_document = None
            self._notices.remove(_UNDO_NOTICE)

    def _undo_load(self) -> None:
        """Undo a load, with the fit to the card that may have followed."""
        loaded = self._form.baseline
        while self._form.baseline is loaded and self._form.undo():
            pass
        self._findings.show("", (), self._form.config)
        self._notify(f"{self._form.source.name} is back, with its unsaved changes.")

    def _unsaved_words(self, kept: Sequence[str] = ()) -> str:
        """Return the work that a load would replace: "#demo with 2 unsaved changes"; empty if all is saved or kept."""
        document = self._form.document
        document = replace(document, baseline=_with_values_of(document.config, document.baseline, kept))
        is_changed = document.is_changed or bool(self._form.drafts)
        return describe_unsaved(document, self._form.drafts) if is_changed else ""

    def _lists_to_keep(self, incoming: Config) -> Iterator[str]:
        """Yield the paths of the user's concepts and sample prompts, which a preset without any must not remove."""
        for path in _KEPT_LISTS:
            is_of_preset = self._form.source.kind == "built_in" and not self._form.differs(path)
            if self._form.value(path) and not get_path(incoming, path) and not is_of_preset:
                yield path

    def _show_failure(self, title: str, error: Exception) -> None:
        self._interaction.show_failure(failure_of(title, error, "Choose another location."))


def _source_of(path: Path) -> Source:
    """Return where a loaded config is saved: to its file, unless that is a preset or not a Darkroom config."""
    if _is_built_in(path):
        return Source(path.stem, path, "built_in")
    return Source(path.stem, path, "file") if path.suffix.lower() == ".json" else Source(path.stem)


def _is_built_in(path: Path) -> bool:
    return path.name.startswith("#") and path.resolve().is_relative_to(BUILT_IN_DIR.resolve())


def _backup_note(older: Path | None) -> str:
    return f" The older file is kept as {older.name}." if older else ""


def first_form() -> FormModel:
    """Return the form of the first start: the demo preset if it is shipped, else the defaults."""
    preset = _demo_preset()
    if preset is None:
        return FormModel()
    return FormModel(preset.load().config, source=Source(preset.name, preset.path, "built_in"))


def _demo_preset() -> Preset | None:
    return next((Preset(DEMO, file.parent.name, file) for file in BUILT_IN_DIR.glob(f"*/{DEMO}.json")), None)


def _with_values_of(config: Config, changed: Config, paths: Iterable[str]) -> Config:
    """Return the second config with the values that the first one has at some paths."""
    for path in paths:
        changed = replace_value(changed, path, get_path(config, path))
    return changed
