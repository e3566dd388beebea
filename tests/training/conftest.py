"""What must hold for every family alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.builders.module_copies import ModuleCopies


@pytest.fixture(scope="session", autouse=True)
def tiny_models_read_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Read each part of the session's tiny models from its file once, and copy it from then on; digest it once, too.

    The libraries take a fifth of a small run to read a model. Models in other folders are read each time.
    """
    from modules.data.cache import digests
    from modules.families.parts import files

    read_from_file, digest_of_file = files.read_part, digests._digest_of
    of_session = tmp_path_factory.getbasetemp()
    parts: dict[tuple[Path, str, type, torch.dtype], ModuleCopies] = {}
    known_digests: dict[tuple[Path, int, int], str] = {}

    def is_shared(folder: Path) -> bool:
        return folder.parent.parent == of_session and folder.parent.name.startswith("models")

    def read_part(folder: Path, name: str, kind: Any, dtype: torch.dtype, **options: Any) -> Any:
        if not is_shared(folder):
            return read_from_file(folder, name, kind, dtype, **options)
        known = (folder, name, kind, dtype)
        if known not in parts:
            parts[known] = ModuleCopies(read_from_file(folder, name, kind, dtype, **options))
        return parts[known].make()

    def digest_of(path: Path) -> str:
        if not is_shared(path.parent.parent):
            return digest_of_file(path)
        status = path.stat()
        known = (path, status.st_size, status.st_mtime_ns)
        if known not in known_digests:
            known_digests[known] = digest_of_file(path)
        return known_digests[known]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "read_part", read_part)
        patch.setattr(digests, "_digest_of", digest_of)
        yield


@pytest.fixture(params=["tiny_sd", "tiny_sdxl"])
def any_model(request: pytest.FixtureRequest) -> Path:
    """A tiny model of each family in turn; nobody may write to it."""
    folder: Path = request.getfixturevalue(request.param)
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the second family of a test with the mark `one_family` to the full suite."""
    for item in items:
        if item.get_closest_marker("one_family") and "[tiny_sdxl" in item.name:
            item.add_marker(pytest.mark.full)
