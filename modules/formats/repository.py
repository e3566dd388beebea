"""Repositories of models at Hugging Face: the files of one that are downloaded, and what is known of it before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.formats.hub_snapshot import failure_of
from modules.system.errors import DarkroomError
from modules.system.secrets import WHERE_TO_ENTER, HubAccess

# The file that lists the parts of a model in diffusers' folder layout.
INDEX = "model_index.json"
MODULAR_INDEX = "modular_model_index.json"
INDEX_FILES = (INDEX, MODULAR_INDEX)
"""The names of the file: in diffusers' pipelines, and in its modular ones."""


def index_file(folder: Path) -> Path | None:
    """Return the file that lists the parts of a model's folder; None where it has none."""
    return next((folder / name for name in INDEX_FILES if (folder / name).is_file()), None)


_WANTED = (
    *INDEX_FILES,
    "*/config.json",
    "*/scheduler_config.json",
    "*/*.safetensors.index.json",
    "*tokenizer*/*",
)
UNWANTED = ("*.fp16.*", "*.bf16.*", "*.non_ema.*", "*flax*", "*.onnx*", "safety_checker/*", "feature_extractor/*")
"""The patterns of files that are not downloaded."""
THREE_WAYS = (
    "Choose a file or folder that you have, a model that is found on this machine, or a repository to download, as "
    "owner/model."
)
_TIMEOUT_SECONDS = 20.0


class MissingModelError(DarkroomError):
    """A model is neither on this machine nor can it be downloaded; `name` is its name in the settings."""

    def __init__(self, name: str, message: str, *, advice: str, remedy: str = "base_model") -> None:
        super().__init__(message, advice=advice, remedy=remedy)
        self.name = name


def wanted_files(parts: Sequence[str] = ("*",)) -> list[str]:
    """Return the patterns of the files that a run downloads: configs, tokenizers, and the weights of `parts`."""
    return [*_WANTED, *(f"{part}/*.safetensors" for part in parts)]


@dataclass(frozen=True, slots=True)
class RepositoryFacts:
    """A repository before it is downloaded: the bytes that a run needs, its licence, and whether it has to be accepted.

    `licence` is empty if the repository does not state it.
    """

    name: str
    size_bytes: int
    licence: str
    is_gated: bool


def repository_facts(name: str, *, parts: Sequence[str], hub: HubAccess) -> RepositoryFacts:
    """Ask Hugging Face about a repository. Raises DarkroomError if it cannot be reached, or gives no access."""
    # Imported here: the import takes a third of a second.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
    from huggingface_hub.utils import filter_repo_objects, httpx

    try:
        info = HfApi().model_info(name, files_metadata=True, token=hub.token, timeout=_TIMEOUT_SECONDS)
    except (HfHubHTTPError, OfflineModeIsEnabled, httpx.HTTPError, OSError, ValueError) as error:
        if refused := refusal(name, error, hub):
            raise refused from error
        failure = failure_of(error, keeps_files=False)
        raise DarkroomError(
            f"Hugging Face could not be asked about {name}: {failure.reason}.",
            advice=failure.advice or "Check the name and the connection.",
        ) from error
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    needed = filter_repo_objects(sizes, allow_patterns=wanted_files(parts), ignore_patterns=list(UNWANTED))
    card = info.card_data
    licence = "" if card is None else str(card.get("license_name") or card.get("license") or "")
    return RepositoryFacts(name, sum(sizes[file] for file in needed), licence, bool(info.gated))


def refusal(name: str, error: Exception, hub: HubAccess) -> MissingModelError | None:
    """Return the error for a repository that Hugging Face refuses to serve, if `error` is such a refusal.

    Hugging Face answers 401 or 404 both for private and for missing repositories, to keep private names secret.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, HfHubHTTPError):
        error = error.__cause__  # raised while looking for a local copy; the cause is the actual error
    code = error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else 0
    is_anonymous = hub.source == "login" and get_token() is None
    tried = "No token was sent." if is_anonymous else f"The request used {hub.description}."
    if isinstance(error, GatedRepoError):
        return MissingModelError(
            name,
            f"{name} is a gated model: you must accept its terms at Hugging Face and use a token. {tried}",
            advice=f"Accept them at huggingface.co/{name}, create a token there and enter it: {WHERE_TO_ENTER}. Or "
            "choose a file that you have, or a model that is found on this machine.",
            remedy="tokens",
        )
    if isinstance(error, RepositoryNotFoundError):
        return MissingModelError(
            name,
            f"There is no folder {name!r}, and no repository of that name at Hugging Face that you can access: either "
            f"it does not exist, or it is private and needs a token. {tried}",
            advice=f"Correct the name, or enter a token that can access it: {WHERE_TO_ENTER}. {THREE_WAYS}",
        )
    if code in (401, 403):
        return MissingModelError(
            name,
            f"Hugging Face did not accept the token for {name} ({code}). {tried}",
            advice=f"Create a token with access to it at huggingface.co and enter it: {WHERE_TO_ENTER}.",
            remedy="tokens",
        )
    return None
