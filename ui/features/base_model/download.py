"""A repository to download: the presets' ones, and the size, the licence and the free space before it is chosen."""

from __future__ import annotations

from modules.config.presets import list_presets, readable_configs
from modules.config.schema import Config
from modules.estimate.disk import free_bytes
from modules.formats.published_files import is_repository
from modules.formats.repository import RepositoryFacts, repository_facts
from modules.settings.edit import replace_value
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import format_size
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets
from trainer.data.hub_datasets import hub_cache_dir
from trainer.preflight.presets_here import download_bytes
from ui.features.base_model.model import PATH, Choice
from ui.forms.model import FormModel
from ui.loop.background import Background, Job, cancel
from ui.loop.signal import Signal

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
        self._asked = ""  # the repository of the last question
        self._answer: RepositoryFacts | str | None = None
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
        texts.append("Asking Hugging Face…" if answer is None else answer)
        return " ".join(filter(None, [*texts, "" if self.may_ask else _OFFLINE]))

    def estimate(self, name: str) -> None:
        """Estimate the size of a repository that presets use, in the background."""
        if name in self.repositories and name not in self._estimates:
            used = replace_value(self.repositories[name], "model.hub_cache_dir", self._form.config.model.hub_cache_dir)
            self._estimates[name] = self._background.run(
                lambda: download_bytes(used), lambda size: self._keep_size(name, size)
            )

    def ask(self, name: str) -> None:
        """Ask Hugging Face about a repository in the background; not in offline mode, nor about an invalid name."""
        if name == self._asked or not is_repository(name) or not self.may_ask:
            return
        cancel(self._lookup)
        config = self._form.config
        parts = [p.name for p in config.family.parts if not config.part(p.name).file.strip()]
        if name in self.repositories and self.repositories[name].family.name != config.family.name:
            parts = [p.name for p in self.repositories[name].family.parts]
        self._asked, self._answer = name, None
        self._lookup = self._background.run(
            lambda: repository_facts(name, parts=parts, hub=hub_access(load_secrets().secrets)),
            self._keep_answer,
            lambda error: self._keep_answer(str(error)),
        )
        self.changed()

    def choose(self, name: str) -> Choice:
        """Return the settings of a repository, which the run downloads. Raises DarkroomError for any other name."""
        if not is_repository(name):
            message = f"{name or 'Nothing'} is not the name of a repository."
            raise DarkroomError(message, advice="Enter it as owner/model.")
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

    def _keep_answer(self, answer: RepositoryFacts | str) -> None:
        self._answer = answer
        self.changed()

    def _keep_repositories(self, repositories: dict[str, Config]) -> None:
        self.repositories = repositories
        self.changed()


def _read_repositories() -> dict[str, Config]:
    """Return the base models of the presets that are repositories, with a config; for a background thread."""
    configs = readable_configs(list_presets()).values()
    models = {config.model.base_model: config for config in configs}
    return {name: config for name, config in models.items() if is_repository(name) and not from_root(name).exists()}
