"""The base models that are found on this machine, and the settings that a chosen one has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.config.schema import Config
from modules.config.usage import with_family
from modules.families.kinds.record import ModelType
from modules.families.registry import FAMILIES
from modules.families.spec import BASE_VARIANT
from modules.model_finder.finder import FoundModel, ModelSearch, rank_models
from modules.model_finder.programs import BASE_MODELS
from modules.settings.edit import set_path
from modules.system.errors import DarkroomError
from modules.system.paths import as_config_path
from modules.system.problem import count
from trainer.data.hub_datasets import hub_cache_dir
from trainer.preflight.part_files import fitting_files
from ui.forms.model import FormModel
from ui.forms.preferences import Preferences
from ui.loop.background import Background, Job, cancel
from ui.loop.signal import Signal

PATH, VARIANT = "model.base_model", "model.variant"
_SEARCHED: tuple[ModelType, ...] = (*BASE_MODELS, "vae", "text_encoders")
_NOTHING = "No model was found where the programs usually are. Add the folder of a program, or of your models."


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen model: the settings that name it, by path; its family, empty if it is not known; a note for the user."""

    settings: Mapping[str, object]
    family: str = ""
    note: str = ""

    def applied_to(self, config: Config) -> Config:
        """Return a config with the model; one of another family keeps the settings that it does not have."""
        for path, value in self.settings.items():
            config, _problems = set_path(config, path, value)
        return config


def choice_of(model: FoundModel) -> Choice:
    """Return the settings of a model that was found. Raises DarkroomError if no run can start from it."""
    kind = model.kind
    if not model.is_base_model:
        raise DarkroomError(kind.sentence, advice="Choose a checkpoint, a diffusers folder or a repository.")
    name = as_config_path(model.path) if model.name == str(model.path) else model.name
    spec = FAMILIES[kind.family]
    own_file = f"parts.{spec.denoiser.name}.file"
    if kind.is_denoiser:
        note = f"The {spec.denoiser.label} is {model.path.name}. The other parts come from the base model."
        return Choice({own_file: name}, kind.family, note)
    settings = {PATH: name, own_file: "", **_variant_of(model)}
    return Choice(settings, kind.family, f"The base model is {model.path.name}.")


def choice_with_parts(model: FoundModel, files: Mapping[str, Path]) -> Choice:
    """Return the settings of a denoiser alone as the base model, with the files of its other parts."""
    spec = FAMILIES[model.kind.family]
    parts = {f"parts.{name}.file": as_config_path(file) for name, file in files.items()}
    settings = {PATH: as_config_path(model.path), f"parts.{spec.denoiser.name}.file": "", **parts, **_variant_of(model)}
    return Choice(settings, spec.name, f"The base model is {model.path.name}, with {count(len(files), 'more file')}.")


def find_parts(config: Config, model: FoundModel, files: Sequence[Path]) -> dict[str, Path]:
    """Return the first of the files that fits each part which a denoiser alone lacks; empty if one has none.

    The files' headers are read: for a background thread.
    """
    kind = model.kind
    config = with_family(config, kind.family, _variant_of(model).get(VARIANT, BASE_VARIANT))
    config, _problems = set_path(config, PATH, as_config_path(model.path))
    fitting = fitting_files(config, files)
    return {name: found[0] for name, found in fitting.items()} if all(fitting.values()) else {}


def _variant_of(model: FoundModel) -> dict[str, str]:
    """Return the setting of the model's variant; empty for one that the family does not have."""
    variant = model.kind.variant or BASE_VARIANT
    return {VARIANT: variant} if variant in (BASE_VARIANT, *FAMILIES[model.kind.family].variants) else {}


class FoundModels:
    """The search on this machine; `changed` is emitted while it proceeds, ten times a second at most."""

    def __init__(self, form: FormModel, preferences: Preferences, background: Background) -> None:
        self.models: list[FoundModel] = []
        self.part_files: list[Path] = []  # of VAEs and text encoders, the largest first: the most precise
        self.is_searching = False
        self.changed: Signal[[]] = Signal()
        self._form = form
        self._preferences = preferences
        self._background = background
        self._search = ModelSearch(_SEARCHED)
        self._folder = ""
        self._job: Job | None = None

    @property
    def status(self) -> str:
        """The progress of the search, or its outcome, as a sentence."""
        if self.is_searching:
            return f"Searching, {count(len(self.models), 'model')} so far: {self._folder}"
        usable = [m for m in self.models if m.is_base_model]
        places = ", ".join(dict.fromkeys(m.place for m in usable))
        text = f"{count(len(usable), 'model')} in {places}." if usable else _NOTHING
        if num_others := len(self.models) - len(usable):
            text += f" {count(num_others, 'file')} cannot be used."
        if self._search.is_cut:
            text += " The search ended before everything was read."
        if self._search.unreadable:
            text += f" Not readable: {', '.join(map(str, self._search.unreadable[:2]))}."
        return text

    def search(self) -> None:
        """Search, again if a search is under way."""
        self.close()
        folders = [Path(name) for name in self._preferences.now.model_folders]
        search = self._search = ModelSearch(_SEARCHED, folders, hub_cache_dir(self._form.config))
        self.is_searching = True
        self._job = self._background.run_reporting(
            lambda report: search.run(lambda folder: report(str(folder), 0, 0)),
            lambda _done: self._finish(),
            lambda _error: self._finish(),
            progress=self._follow,
        )
        self.changed()

    def stop(self) -> None:
        """End the search; what it has found stays."""
        self._search.stop()

    def add_folder(self, folder: Path) -> None:
        """Remember a folder of a program, or any other one with models, and search again."""
        self._preferences.note_model_folder(folder)
        self.search()

    def close(self) -> None:
        """End the search without its results."""
        self.stop()
        cancel(self._job)

    def _follow(self, folder: str, _number: int, _total: int) -> None:
        self._folder = folder
        self._rank()

    def _finish(self) -> None:
        self.is_searching = False
        self._rank()

    def _rank(self) -> None:
        models = list(self._search.found)
        self.models = rank_models([m for m in models if not m.is_part], self._form.config.family.name)
        parts = sorted((m for m in models if m.is_part), key=lambda m: -m.size_bytes)
        self.part_files = [m.path for m in parts]
        self.changed()
