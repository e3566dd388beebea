"""A repository to download: the presets' ones, and the size, the licence and the free space before it is chosen."""

from __future__ import annotations

from modules.config.presets import list_presets, readable_configs
from modules.estimate.disk import free_bytes
from modules.families.registry import FAMILIES
from modules.formats.published_files import is_repository
from modules.formats.repository import RepositoryFacts, repository_facts
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets
from trainer.data.hub_datasets import hub_cache_dir
from ui.features.base_model.model import PATH, Choice
from ui.forms.model import FormModel
from ui.loop.background import Background, Job
from ui.loop.signal import Signal
from ui.loop.wording import format_size

_OFFLINE = "Offline mode is on, so nothing is asked or downloaded. To use a repository switches it off."
_AT_START = "It is downloaded once, when the run starts."


class Download:
    """The repositories that presets use, by their name with their family, and what Hugging Face reports about one."""

    def __init__(self, form: FormModel, background: Background) -> None:
        self.repositories: dict[str, str] = {}
        self.changed: Signal[[]] = Signal()
        self._form = form
        self._background = background
        self._asked = ""  # the repository of the last question
        self._answer: RepositoryFacts | str | None = None
        self._lookup: Job | None = None
        self._reading = background.run(_read_repositories, self._keep_repositories)

    @property
    def proposed(self) -> str:
        """The repository to begin with: the config's, or the first of its family."""
        config = self._form.config
        if is_repository(config.model.base_model) and not from_root(config.model.base_model).exists():
            return config.model.base_model
        return next((name for name, family in self.repositories.items() if family == config.family.name), "")

    @property
    def labels(self) -> dict[str, str]:
        """The repositories with the label of their family, those of the config's family first."""
        own = self._form.config.family.name
        ordered = sorted(self.repositories.items(), key=lambda entry: entry[1] != own)
        return {name: f"{FAMILIES[family].label}:  {name}" for name, family in ordered}

    @property
    def may_ask(self) -> bool:
        """Whether the network may be used."""
        return not self._form.config.model.offline

    @property
    def text(self) -> str:
        """The size, the free space and the licence of the repository that was asked about, or why they are unknown."""
        if not self.may_ask:
            return _OFFLINE
        match self._answer:
            case None:
                return "Asking Hugging Face…" if self._asked else ""
            case str() as problem:
                return problem
            case facts:
                return self._describe(facts)

    def ask(self, name: str) -> None:
        """Ask Hugging Face about a repository in the background; not in offline mode, nor about a name that is none."""
        if name == self._asked or not is_repository(name) or not self.may_ask:
            return
        if self._lookup is not None:
            self._lookup.cancel()
        config = self._form.config
        parts = [p.name for p in config.family.parts if not config.part(p.name).file.strip()]
        family = self.repositories.get(name, config.family.name)
        if family != config.family.name:
            parts = [p.name for p in FAMILIES[family].parts]
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
        return Choice({PATH: name, **online}, self.repositories.get(name, ""), f"The base model is {name}. {_AT_START}")

    def close(self) -> None:
        """Drop what is under way."""
        for job in (self._reading, self._lookup):
            if job is not None:
                job.cancel()

    def _describe(self, facts: RepositoryFacts) -> str:
        folder = hub_cache_dir(self._form.config)
        free = free_bytes(folder)
        size = f"{format_size(facts.size_bytes)} to download"
        room = f", {format_size(free)} free in {folder}" if free is not None else ""
        licence = f"Licence: {facts.licence}." if facts.licence else "It states no licence."
        lines = [f"{size}{room}. {licence}"]
        if free is not None and free < facts.size_bytes:
            lines.append("There is not enough space: free some, or choose another download folder on the Model page.")
        if facts.is_gated:
            lines.append(f"Accept its terms at huggingface.co/{facts.name}, and enter a token (Tokens…).")
        return " ".join((*lines, _AT_START))

    def _keep_answer(self, answer: RepositoryFacts | str) -> None:
        self._answer = answer
        self.changed()

    def _keep_repositories(self, repositories: dict[str, str]) -> None:
        self.repositories = repositories
        self.changed()


def _read_repositories() -> dict[str, str]:
    """Return the base models of the presets that are repositories, with their family; for a background thread."""
    configs = readable_configs(list_presets()).values()
    models = {config.model.base_model: config.family.name for config in configs}
    return {name: family for name, family in models.items() if is_repository(name) and not from_root(name).exists()}
