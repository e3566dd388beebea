"""The model of a request: found on this computer, or downloaded where the user asked for that."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modules.annotators.files import found_place
from modules.annotators.spec import CaptionerSpec, MaskerSpec
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets
from trainer.annotation.events import AnnotationEvent, Loading
from trainer.annotation.work import StoppedError

_SECONDS_BETWEEN = 0.2


def load_annotator(
    spec: CaptionerSpec | MaskerSpec,
    settings: object,
    *,
    device: str,
    may_download: bool,
    emit: Callable[[AnnotationEvent], None],
    should_stop: Callable[[], bool],
) -> Any:
    """Return the captioner or masker of a record, loaded.

    Raises DarkroomError where a package or a file is missing and may not be downloaded, and StoppedError where the user
    stops the download.
    """
    for package in spec.packages:
        if not package.is_installed:
            raise DarkroomError(
                f"{spec.label} needs the package {package.name}, which is not installed.",
                advice=f"{package.install}, or choose another model.",
            )
    place = None if spec.files is None else _place(spec, may_download, emit, should_stop)
    emit(Loading(spec.label))
    if should_stop():
        raise StoppedError
    return load_factory(spec.factory)(place, settings, device)


def _place(
    spec: CaptionerSpec | MaskerSpec,
    may_download: bool,
    emit: Callable[[AnnotationEvent], None],
    should_stop: Callable[[], bool],
) -> Path:
    assert spec.files is not None
    place = found_place(spec.files)
    if place is not None:
        return place
    if not may_download:
        raise DarkroomError(
            f"{spec.label} needs files that are not on this computer: {spec.files.words}.",
            advice="Repeat the command with --download to download them.",
        )
    last = 0.0

    def on_bytes(done: float, total: float) -> None:
        nonlocal last
        if should_stop():
            raise StoppedError
        if time.monotonic() - last >= _SECONDS_BETWEEN:
            last = time.monotonic()
            emit(Loading(spec.label, done / 1e6, total / 1e6))

    download = load_factory("modules.annotators.download:downloaded_place")
    result: Path = download(spec.files, hub=hub_access(load_secrets().secrets), on_bytes=on_bytes)
    return result
