"""Models in diffusers' folder layout: locating or downloading them, and reading their parts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from modules.formats.headers import UnreadableFileError, read_header
from modules.formats.hub_snapshot import OnBytes, download_snapshot, failure_of
from modules.formats.repository import THREE_WAYS, UNWANTED, MissingModelError, refusal, wanted_files
from modules.formats.safetensors_io import DTYPES
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.paths import from_root
from modules.system.regular_files import read_regular
from modules.system.secrets import HubAccess

_MAX_JSON_BYTES = 1_000_000


def locate(
    name: str,
    *,
    offline: bool,
    cache_dir: str,
    parts: Sequence[str] = ("*",),
    files: Sequence[str] = (),
    hub: HubAccess | None = None,
    on_bytes: OnBytes | None = None,
) -> Path:
    """Return the folder of a base model: the folder itself, or the local copy of a Hugging Face repository.

    A missing repository is downloaded, only the weights of `parts`, and further `files` of it. `on_bytes(done, total)`
    is called several times a second, from several threads, and may raise to cancel (`download_snapshot`). A later
    download keeps the files that are there. `hub` holds the access token. Raises MissingModelError if there is neither
    a folder nor a repository, or if the token gives no access to it.
    """
    folder = from_root(name)
    if folder.is_dir():
        return folder
    # Imported here: the import takes a third of a second, which a run from a local folder does not need.
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    hub = hub or HubAccess()
    try:
        return download_snapshot(
            name,
            allow_patterns=[*wanted_files(parts), *files],
            ignore_patterns=UNWANTED,
            local_files_only=offline,
            cache_dir=cache_dir,
            hub=hub,
            on_bytes=on_bytes,
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        if refused := refusal(name, error, hub):
            raise refused from error
        failure = failure_of(error)
        how = "the network may not be used" if offline else f"it could not be downloaded: {failure.reason}"
        raise MissingModelError(
            name,
            f"The base model {name!r} is not on this machine, and {how}.",
            advice=failure.advice or THREE_WAYS,
            remedy=failure.remedy or "base_model",
        ) from error


def read_json(folder: Path, *names: str) -> dict[str, Any]:
    """Return a JSON file of a model's folder. Raises DarkroomError if it is missing or damaged."""
    file = folder.joinpath(*names)
    try:
        data = json.loads(read_regular(file, _MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise DarkroomError(
            f"The model in {folder} is incomplete: {'/'.join(names)} cannot be read ({plain_reason(error)}).",
            advice="Download it again.",
        ) from error
    if not isinstance(data, dict):
        raise DarkroomError(f"The model in {folder} is damaged: {'/'.join(names)} contains no settings.")
    return data


@contextmanager
def _without_report() -> Iterator[None]:
    """Let transformers log errors alone while it reads weights: what is missing is in its result."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def read_part(
    folder: Path, name: str, kind: Any, dtype: torch.dtype, *, names: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """Return one part of a model, on the CPU, in eval mode, frozen.

    `kind` is the diffusers or transformers class. For the patterns in `names`, the names of a class of
    transformers have what they are paired with. Only weights are loaded, never code. Raises DarkroomError if
    the folder does not contain the part.
    """
    disable_progress_bar()  # one bar per part would clutter every log
    is_diffusers = kind.__module__.startswith("diffusers")
    # Only transformers knows code in a model's repository.
    options: dict[str, Any] = {"torch_dtype": dtype} if is_diffusers else {"dtype": dtype, "trust_remote_code": False}
    if names:
        options["key_mapping"] = dict(names)
    try:
        with _without_report():  # of tensors of other parts, such as a language model's head
            module, loading = kind.from_pretrained(
                folder / name, local_files_only=True, use_safetensors=True, output_loading_info=True, **options
            )
    except (OSError, ValueError, RuntimeError) as error:
        reason = plain_reason(error).partition(". If you want")[0]  # what follows is for callers of diffusers
        raise DarkroomError(
            f"The {name} of the model in {folder} cannot be read: {reason}.",
            advice="The folder must hold it as .safetensors in diffusers layout. If it is damaged, download it again.",
        ) from error
    missing = [*loading["missing_keys"], *loading["mismatched_keys"]]
    if missing:  # the libraries would initialize them randomly and continue
        raise DarkroomError(
            f"The {name} of the model in {folder} lacks {len(missing)} of its weights; the first is {missing[0]}.",
            advice="The download is damaged or belongs to another model; download it again.",
        )
    return module.eval().requires_grad_(False)


def stored_dtype(folder: Path) -> torch.dtype | None:
    """Return the dtype of all weights in a part's folder; None if they have several, or a file cannot be read."""
    try:
        headers = [read_header(file) for file in folder.glob("*.safetensors")]
    except UnreadableFileError:
        return None  # reading the part explains it
    dtypes = {DTYPES.get(tensor.dtype) for header in headers for tensor in header.tensors.values()}
    [dtype] = dtypes if len(dtypes) == 1 else [None]
    return dtype if dtype in (torch.float32, torch.bfloat16, torch.float16) else None


def keeps_some_in_float32(kind: Any) -> bool:
    """Return whether a diffusers or transformers class keeps some of its weights in float32 when it is read."""
    lists = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
    return any(getattr(kind, name, None) for name in lists)
