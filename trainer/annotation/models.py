"""The model of a request: found on this computer, or downloaded where the user asked for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.annotators.spec import CaptionerSpec, MaskerSpec, find_place
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets
from trainer.tools.job import Job


def load_annotator(
    spec: CaptionerSpec | MaskerSpec,
    settings: object,
    *,
    device: str,
    may_download: bool,
    job: Job,
) -> Any:
    """Return the captioner or masker of a record, loaded.

    Raises DarkroomError where a package or a file is missing and may not be downloaded, and StopRequested where the
    user stops the download.
    """
    for package in spec.packages:
        if not package.is_installed:
            raise DarkroomError(
                f"{spec.label} needs the package {package.name}, which is not installed.",
                advice=f"{package.install}, or choose another model.",
            )
    place = None if spec.files is None else _place(spec, may_download, job)
    job.progress(f"loading {spec.label}", 0, 1)
    return load_factory(spec.factory)(place, settings, device)


def _place(spec: CaptionerSpec | MaskerSpec, may_download: bool, job: Job) -> Path:
    assert spec.files is not None
    place = find_place(spec.files)
    if place is not None:
        return place
    if not may_download:
        raise DarkroomError(
            f"{spec.label} needs files that are not on this computer: {spec.files.description}.",
            advice="Repeat the command with --download to download them.",
        )

    def on_bytes(done: float, total: float) -> None:
        job.progress(f"downloading {spec.label} (MB)", round(done / 1e6), round(total / 1e6))

    download = load_factory("modules.annotators.download:download_place")
    result: Path = download(spec.files, hub=hub_access(load_secrets().secrets), on_bytes=on_bytes)
    return result
