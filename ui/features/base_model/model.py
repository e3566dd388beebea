"""The base models that are found on this machine or can be downloaded, and the settings that a chosen one has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.config.presets import list_presets, readable_configs
from modules.config.schema import Config
from modules.config.usage import with_family
from modules.estimate.disk import free_bytes
from modules.families.kinds.record import ModelType
from modules.families.registry import FAMILIES
from modules.families.spec import BASE_VARIANT
from modules.formats.published_files import is_repository
from modules.formats.repository import MissingModelError, RepositoryFacts, repository_facts
from modules.model_finder.finder import FoundModel, ModelSearch, rank_models
from modules.model_finder.programs import BASE_MODELS
from modules.settings.edit import replace_value, set_path
from modules.system.errors import DarkroomError
from modules.system.paths import as_config_path, from_root
from modules.system.problem import count, format_size
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets
from trainer.data.hub_datasets import hub_cache_dir
from trainer.preflight.part_files import fitting_files
from trainer.preflight.presets_here import download_bytes
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


_OFFLINE = "Offline mode is on, so nothing is asked or downloaded. Using a repository switches it off."
_NO_ROOM = "There is not enough space: free some, or choose another download folder on the Model page."
_AT_START = "It is downloaded once, when the run starts."


class Download:
    """The repositories that presets use, each with a preset's config, and what is known or asked about one.

    The size of a known repository is estimated at once; Hugging Face is only asked when the user wants it.
    """

    def __init__(self, form: FormModel, background: Background) -> None:
        self.repositories: dict[str, Config] = {}
        self.changed: Signal[[]] = Signal()
        self._form = form
        self._background = background
        self._asked: str | None = None  # the repository of the last question
        self._answer: RepositoryFacts | Exception | None = None
        self._lookup: Job | None = None
        self._sizes: dict[str, int | None] = {}  # estimated, by repository
        self._estimates: dict[str, Job] = {}
        self._reading = background.run(_read_repositories, self._keep_repositories)

    @property
    def proposed(self) -> str:
        """The repository to begin with: the config's, or the first of its family."""
        config = self._form.config
        if is_repository(config.model.base_model) and not from_root(config.model.base_model).exists():
            return config.model.base_model
        return next((n for n, c in self.repositories.items() if c.family.name == config.family.name), "")

    @property
    def labels(self) -> dict[str, str]:
        """The repositories with the label of their family, the config's family first."""
        family = self._form.config.family.name
        ordered = sorted(self.repositories.items(), key=lambda entry: entry[1].family.name != family)
        return {name: f"{config.family.label}:  {name}" for name, config in ordered}

    @property
    def may_ask(self) -> bool:
        """Whether the network may be used."""
        return not self._form.config.model.offline

    def text(self, name: str) -> str:
        """Return the size, the free space and the licence of a repository, as far as they are known."""
        answer = self._answer if name == self._asked else ""
        if isinstance(answer, RepositoryFacts):
            return self._describe(answer)
        size = self._sizes.get(name)
        texts = [] if size is None else [self._room(size, about="About ") if size else "It is already downloaded."]
        texts.append("Asking Hugging Face…" if answer is None else str(answer))
        return " ".join(filter(None, [*texts, "" if self.may_ask else _OFFLINE]))

    def estimate(self, name: str) -> None:
        """Estimate the size of a repository that presets use, in the background."""
        if name in self.repositories and name not in self._estimates:
            used = replace_value(self.repositories[name], "model.hub_cache_dir", self._form.config.model.hub_cache_dir)
            self._estimates[name] = self._background.run(
                lambda: download_bytes(used), lambda size: self._keep_size(name, size)
            )

    def failure(self, name: str) -> Exception | None:
        """Return why the last question about a repository has no answer; None if it has one, or was not asked."""
        return self._answer if name == self._asked and isinstance(self._answer, Exception) else None

    def needs_token(self, name: str) -> bool:
        """Whether a token may be needed for a repository: it is gated, or Hugging Face gave no access to it."""
        answer = self._answer if name == self._asked else None
        return isinstance(answer, MissingModelError) or (isinstance(answer, RepositoryFacts) and answer.is_gated)

    def ask(self, name: str) -> None:
        """Ask Hugging Face about a repository in the background, again if it was asked before; not in offline mode."""
        if not self.may_ask or (name == self._asked and self._answer is None):
            return
        cancel(self._lookup)
        if not is_repository(name):
            self._asked, self._answer = name, _not_a_repository(name)
            self.changed()
            return
        config = self._form.config
        parts = [p.name for p in config.family.parts if not config.part(p.name).file.strip()]
        if name in self.repositories and self.repositories[name].family.name != config.family.name:
            parts = [p.name for p in self.repositories[name].family.parts]
        self._asked, self._answer = name, None
        self._lookup = self._background.run(
            lambda: repository_facts(name, parts=parts, hub=hub_access(load_secrets().secrets)),
            self._keep_answer,
            self._keep_answer,
        )
        self.changed()

    def choose(self, name: str) -> Choice:
        """Return the settings of a repository, which the run downloads. Raises DarkroomError for any other name."""
        if not is_repository(name):
            raise _not_a_repository(name)
        online = {} if self.may_ask else {"model.offline": False}
        family = self.repositories[name].family.name if name in self.repositories else ""
        return Choice({PATH: name, **online}, family, f"The base model is {name}. {_AT_START}")

    def close(self) -> None:
        """Drop what is under way."""
        for job in (self._reading, self._lookup, *self._estimates.values()):
            if job is not None:
                job.cancel()

    def _describe(self, facts: RepositoryFacts) -> str:
        lines = [self._room(facts.size_bytes)]
        page = f"huggingface.co/{facts.name}"
        if facts.is_gated:
            lines.append(f"Licence: {facts.licence or 'its own terms'}.")
            lines.append(f"Accept it at {page}, and enter a token: Tokens… in the presets menu.")
        else:
            lines.append(f"Licence: {facts.licence}, to read at {page}." if facts.licence else "It states no licence.")
        return " ".join((*lines, _AT_START))

    def _room(self, size_bytes: int, about: str = "") -> str:
        """Return a size with the free space, as a sentence, and a second one if that is too small."""
        folder = hub_cache_dir(self._form.config)
        free = free_bytes(folder)
        room = f", {format_size(free)} free in {folder}" if free is not None else ""
        text = f"{about}{format_size(size_bytes)} to download{room}."
        is_short = free is not None and free < size_bytes
        return f"{text} {_NO_ROOM}" if is_short else text

    def _keep_size(self, name: str, size: int | None) -> None:
        self._sizes[name] = size
        self.changed()

    def _keep_answer(self, answer: RepositoryFacts | Exception) -> None:
        self._answer = answer
        self.changed()

    def _keep_repositories(self, repositories: dict[str, Config]) -> None:
        self.repositories = repositories
        self.changed()


def _not_a_repository(name: str) -> DarkroomError:
    message = f"{name or 'Nothing'} is not the name of a repository."
    return DarkroomError(message, advice="Enter it as owner/model.")


def _read_repositories() -> dict[str, Config]:
    """Return the base models of the presets that are repositories, with a config; for a background thread."""
    configs = readable_configs(list_presets()).values()
    models = {config.model.base_model: config for config in configs}
    return {name: config for name, config in models.items() if is_repository(name) and not from_root(name).exists()}
