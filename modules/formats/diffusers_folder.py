"""Models in diffusers' folder layout: where they are, and reading their parts."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.secrets import WHERE_TO_ENTER, HubAccess

_WANTED = (
    "model_index.json",
    "*/config.json",
    "*/scheduler_config.json",
    "tokenizer*/*",
)
_UNWANTED = ("*.fp16.*", "*.non_ema.*", "*flax*", "*.onnx*", "safety_checker/*", "feature_extractor/*")


OnBytes = Callable[[float, float], None]


def locate(
    name: str,
    *,
    offline: bool,
    cache_dir: str,
    parts: Sequence[str] = ("*",),
    hub: HubAccess | None = None,
    on_bytes: OnBytes | None = None,
) -> Path:
    """Return the folder of a base model: the folder itself, or the local copy of a Hugging Face repository.

    A repository is downloaded when it is not there yet, the weights of `parts` alone; `on_bytes(done, total)` is then
    called now and then, from several threads, and may raise to end it. What was downloaded by then is used the next
    time. `hub` holds the token to ask with. Raises DarkroomError where there is neither folder nor repository, or the
    token does not open it.
    """
    folder = from_root(name)
    if folder.is_dir():
        return folder
    # Imported here: it takes a third of a second that a run from a folder need not spend.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    hub = hub or HubAccess()
    try:
        return Path(
            snapshot_download(
                name,
                allow_patterns=[*_WANTED, *(f"{part}/*.safetensors" for part in parts)],
                ignore_patterns=list(_UNWANTED),
                local_files_only=offline,
                cache_dir=cache_dir or None,
                token=hub.token,
                tqdm_class=telling_bar(on_bytes or (lambda done, total: None)),
            )
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        if refusal := _refusal(name, error, hub):
            raise refusal from error
        how = "the network may not be used" if offline else "it could not be downloaded"
        raise DarkroomError(
            f"The base model {name!r} is not on this machine, and {how}.",
            advice="Check the name and the connection, or choose a folder in diffusers layout.",
        ) from error


def _refusal(name: str, error: Exception, hub: HubAccess) -> DarkroomError | None:
    """Return the sentence for a repository that Hugging Face does not hand out, where that is what the error says.

    It answers 401 or 404 alike for what is private and what is not there, lest the names of private ones be found out.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, HfHubHTTPError):
        error = error.__cause__  # it looked for a local copy, which is not what went wrong
    code = error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else 0
    tried = f"Asked with {hub.words}."
    if isinstance(error, GatedRepoError):
        return DarkroomError(
            f"{name} is given only to those who accepted its terms at Hugging Face, and needs a token. {tried}",
            advice=f"Accept them at huggingface.co/{name}, make a token there and enter it: {WHERE_TO_ENTER}.",
        )
    if isinstance(error, RepositoryNotFoundError):
        return DarkroomError(
            f"There is no folder {name!r} here, and no repository of that name at Hugging Face that may be read: it "
            f"is not there, or it is private and needs a token. {tried}",
            advice=f"Correct the name of the base model, or enter a token that may read it: {WHERE_TO_ENTER}.",
        )
    if code in (401, 403):
        return DarkroomError(
            f"Hugging Face did not accept the token for {name} ({code}). {tried}",
            advice=f"Make a token that may read it, at huggingface.co, and enter it: {WHERE_TO_ENTER}.",
        )
    return None


def telling_bar(on_bytes: OnBytes) -> type[Any]:
    """Return a progress bar class that draws nothing and tells the bytes of the whole download."""
    from tqdm import tqdm

    class TellingBar(tqdm):  # type: ignore[misc]  # untyped library
        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*arguments, **{**options, "disable": False, "file": io.StringIO()})

        def update(self, n: float | None = 1) -> bool | None:
            result: bool | None = super().update(n)
            if self.unit == "B" and self.total:
                on_bytes(float(self.n), float(self.total))
            return result

    return TellingBar


def read_json(folder: Path, *names: str) -> dict[str, Any]:
    """Return a JSON file of a model's folder. Raises DarkroomError where it is missing or broken."""
    file = folder.joinpath(*names)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DarkroomError(
            f"The model in {folder} is incomplete: {'/'.join(names)} cannot be read ({error}).",
            advice="Download it again.",
        ) from error
    if not isinstance(data, dict):
        raise DarkroomError(f"The model in {folder} is broken: {'/'.join(names)} holds no settings.")
    return data


def read_part(folder: Path, name: str, kind: Any, dtype: torch.dtype) -> Any:
    """Return one part of a model, on the processor, in eval mode, frozen.

    `kind` is the diffusers or transformers class. Only weights are read, never code. Raises DarkroomError where the
    folder does not hold it.
    """
    disable_progress_bar()  # one bar per part would run through every log
    is_diffusers = kind.__module__.startswith("diffusers")
    options = {"torch_dtype": dtype} if is_diffusers else {"dtype": dtype}
    try:
        module, loading = kind.from_pretrained(
            folder / name, local_files_only=True, use_safetensors=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise DarkroomError(
            f"The {name} of the model in {folder} cannot be read: {str(error).splitlines()[0]}",
            advice="The folder must hold it as .safetensors in diffusers layout; download it again if it is damaged.",
        ) from error
    missing = [*loading["missing_keys"], *loading["mismatched_keys"]]
    if missing:  # the libraries would draw them at random and go on
        raise DarkroomError(
            f"The {name} of the model in {folder} lacks {len(missing)} of its weights; the first is {missing[0]}.",
            advice="The download is damaged or belongs to another model; download it again.",
        )
    return module.eval().requires_grad_(False)
