"""The debug bundle: everything that a bug report needs, without secrets, as one zip file.

Texts are redacted, the home folder is written as "~", and images, captions and weights are never part of it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.config.codec import encode
from modules.config.schema import Config
from modules.system.atomic import atomic_file
from modules.system.gpu_tools import run_tool, why_no_answer
from modules.system.hardware import free_memory, torch_build, total_memory
from modules.system.redaction import MASK, redact, without_tokens
from modules.system.secret_keys import without_secrets
from modules.system.secrets import stored_values
from modules.system.secrets_file import load_secrets
from trainer.run_folder.event_log import EVENTS_FILE
from trainer.run_folder.run_dir import age_of

_MAX_BYTES = 400_000  # of the end of a log
_GPU_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A file of the bundle: its name, what it contains in a sentence, and its text."""

    name: str
    what: str
    text: str


def collect_bundle(
    config: Config | None, *, run_dir: Path | None = None, log_file: Path | None = None
) -> tuple[BundleFile, ...]:
    """Return the files of a bundle. Sources that do not exist or cannot be read are left out."""
    stored = stored_values(load_secrets().secrets)  # the keys among them are redacted from now on
    files: list[BundleFile] = []
    if config is not None:
        tree, _notes = without_secrets(encode(config))
        files.append(BundleFile("config.json", "All settings.", json.dumps(tree, indent=1, ensure_ascii=False)))
    files.append(BundleFile("environment.txt", "Versions of Python and of all packages.", "\n".join(_environment())))
    files.append(BundleFile("hardware.txt", "Processor, memory, disk and GPUs.", "\n".join(_hardware(run_dir))))
    if log_file is not None:
        files += _end_of(log_file, "window.log", "The log of this window.")
    if run_dir is not None:
        files += _end_of(run_dir / EVENTS_FILE, EVENTS_FILE, "The newest events of the last run.")
        if config is None:
            files += _end_of(run_dir / "config.json", "config.json", "All settings of the run.")
        files += _end_of(run_dir / "error.txt", "error.txt", "The error that ended the run.")
    return tuple(BundleFile(f.name, f.what, remove_secrets(f.text, stored)) for f in files)


def newest_run(workspace: Path) -> Path | None:
    """Return the folder of the newest run of a workspace; None without any."""
    return max((p for p in workspace.glob("runs/*") if p.is_dir()), key=age_of, default=None)


def write_bundle(destination: Path, files: Sequence[BundleFile]) -> None:
    """Write a bundle as a zip file, atomically. Raises OSError."""
    with atomic_file(destination) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.writestr(file.name, file.text)


def remove_secrets(text: str, stored: Sequence[str] = ()) -> str:
    """Return a text without tokens, passwords in addresses, the name of the home folder, and all `stored` values.

    Those are masked as whole words only: a user name may be a part of an ordinary word.
    """
    plain = redact(text)
    for value in sorted(stored, key=len, reverse=True):
        plain = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", MASK, plain)
    plain = without_tokens(plain)
    home = str(Path.home())
    for form in (home, home.replace("\\", "\\\\"), home.replace("\\", "/")):
        plain = plain.replace(form, "~") if len(form) > 1 else plain
    return plain


def _end_of(file: Path, name: str, what: str) -> list[BundleFile]:
    """Return the end of a text file, whole lines only; nothing if it cannot be read."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - _MAX_BYTES))
            content = opened.read()
    except OSError:
        return []
    if size > _MAX_BYTES:
        content = content.partition(b"\n")[2]
    return [BundleFile(name, what, content.decode("utf-8", errors="replace"))]


def _environment() -> Iterator[str]:
    yield f"Python {platform.python_version()} on {platform.platform()}"
    yield f"Executable: {sys.executable}"
    for name in ("CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "OMP_NUM_THREADS"):
        if name in os.environ:
            yield f"{name}={os.environ[name]}"
    yield ""
    versions = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    yield from (f"{name} {versions[name]}" for name in sorted(versions, key=str.casefold))


def _hardware(run_dir: Path | None) -> Iterator[str]:
    yield f"Processor: {platform.processor() or platform.machine()}, {os.cpu_count()} logical cores"
    yield f"Memory: {total_memory() / 1e9:.1f} GB, {free_memory() / 1e9:.1f} GB free"
    place = run_dir if run_dir is not None and run_dir.exists() else Path.home()
    yield f"Disk of {place}: {shutil.disk_usage(place).free / 1e9:.1f} GB free"
    yield f"torch build: {torch_build() or 'default'}"
    try:
        yield from (f"GPU: {line}" for line in run_tool(_GPU_QUERY).splitlines())
    except (OSError, subprocess.SubprocessError) as error:
        yield f"GPU: {why_no_answer(_GPU_QUERY, error)}"
