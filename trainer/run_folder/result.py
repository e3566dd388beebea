"""The result of a run on disk: copying a saved model, and making the best one the result. Torch-free."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from modules.system.atomic import copy_file, copy_folder
from trainer.run_folder.written import record_again


def copy_model(source: Path, destination: Path) -> None:
    """Copy a saved model atomically: a folder, or a file with its .yaml. If it raises OSError, an existing one stays.

    The .yaml is what some programs read a checkpoint's prediction type from. Embeddings beside it are copied, too.
    """
    for file in sorted(words_folder(source).glob("*.safetensors")):
        copy_file(file, words_folder(destination) / file.name)
    if source.is_dir():
        copy_folder(source, destination)
        return
    copy_file(source, destination)
    if source.with_suffix(".yaml").is_file():
        copy_file(source.with_suffix(".yaml"), destination.with_suffix(".yaml"))


def link_model(source: Path, destination: Path) -> None:
    """Give a saved model a second place, with all files that `copy_model` copies, without more room on the disk.

    The places share their files: that is only for models that are never changed, but replaced as a whole. Where the
    file system cannot do that, they are copied. Raises OSError.
    """
    for file in model_files(source):
        if file.is_relative_to(source):
            place = destination / file.relative_to(source)
        elif file.parent == words_folder(source):
            place = words_folder(destination) / file.name
        else:
            place = destination.with_suffix(file.suffix)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, place)
        except OSError:
            shutil.copyfile(file, place)


def use_as_result(source: Path, destination: Path, *, run_dir: Path, is_kept: bool) -> Path | None:
    """Copy a saved model to the place of the result; return where the model that was there is kept, None without one.

    If it `is_kept`, it is copied first, to the run's "save" folder as "<name>-last", and under a further number if that
    name is taken. Raises OSError; the result is then unchanged.
    """
    kept = None
    if destination.exists() and is_kept:
        kept = _free_name(run_dir / "save", f"{destination.stem}-last", destination.suffix)
        copy_model(destination, kept)
    copy_model(source, destination)
    with suppress(OSError):  # the model is in its place; a resumed run would only write the result once more
        record_again(run_dir, destination, model_files(destination))
    return kept


def model_files(path: Path) -> list[Path]:
    """Return the files of a saved model: it or those in its folder, its .yaml, and the embeddings beside it."""
    own = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    sidecar = path.with_suffix(".yaml")
    beside = [sidecar] if not path.is_dir() and sidecar.is_file() else []
    return [*own, *beside, *sorted(words_folder(path).glob("*.safetensors"))]


def words_folder(result: Path) -> Path:
    """Return the folder of the embeddings beside a result, as OneTrainer names it."""
    stem = result.stem if result.suffix == ".safetensors" else result.name
    return result.with_name(f"{stem}_embeddings")


def _free_name(folder: Path, stem: str, suffix: str) -> Path:
    number = 1
    while (path := folder / f"{stem}{f'-{number}' if number > 1 else ''}{suffix}").exists():
        number += 1
    return path
