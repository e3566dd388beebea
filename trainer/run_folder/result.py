"""The result of a run on disk: copying a saved model, and making the best one the result. Torch-free."""

from __future__ import annotations

import shutil
from pathlib import Path

from modules.system.atomic import atomic_file, atomic_folder


def copy_model(source: Path, destination: Path) -> None:
    """Copy a saved model atomically: a folder, or a file with its .yaml. If it raises OSError, an existing one stays.

    The .yaml is what some programs read a checkpoint's prediction type from. Embeddings beside it are copied, too.
    """
    for file in sorted(words_folder(source).glob("*.safetensors")):
        _copy_file(file, words_folder(destination) / file.name)
    if source.is_dir():
        with atomic_folder(destination) as temporary:
            shutil.copytree(source, temporary, dirs_exist_ok=True)
        return
    _copy_file(source, destination)
    if source.with_suffix(".yaml").is_file():
        _copy_file(source.with_suffix(".yaml"), destination.with_suffix(".yaml"))


def use_as_result(source: Path, destination: Path, *, keep_in: Path | None) -> Path | None:
    """Copy a saved model to the place of the result; return where the model that was there is kept, None without one.

    It is kept first, in the folder `keep_in` as "<name>-last", and under a further number if that name is taken; not
    at all without a folder. Raises OSError; the result is then unchanged.
    """
    kept = None
    if destination.exists() and keep_in is not None:
        kept = _free_name(keep_in, f"{destination.stem}-last", destination.suffix)
        copy_model(destination, kept)
    copy_model(source, destination)
    return kept


def words_folder(result: Path) -> Path:
    """Return the folder of the embeddings beside a result, as OneTrainer names it."""
    stem = result.stem if result.suffix == ".safetensors" else result.name
    return result.with_name(f"{stem}_embeddings")


def _free_name(folder: Path, stem: str, suffix: str) -> Path:
    number = 1
    while (path := folder / f"{stem}{f'-{number}' if number > 1 else ''}{suffix}").exists():
        number += 1
    return path


def _copy_file(source: Path, destination: Path) -> None:
    with atomic_file(destination) as temporary:
        shutil.copyfile(source, temporary)
