"""Imports that leave out optional packages, and imports that wait until a module is used."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.system.lean_imports import collection_off, defer_import, packages_hidden


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages that can be imported: heavy_optional, and heavy_optional.part."""
    (tmp_path / "heavy_optional").mkdir()
    (tmp_path / "heavy_optional" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "heavy_optional" / "part.py").write_text("import decimal\nVALUE = 3\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("heavy_optional")]:
        del sys.modules[name]


def _is_found() -> bool:
    return importlib.util.find_spec("heavy_optional") is not None


@pytest.mark.usefixtures("packages")
def test_a_hidden_package_is_not_installed_for_the_time() -> None:
    finders, find_spec = list(sys.meta_path), importlib.util.find_spec
    with packages_hidden({"heavy_optional"}):
        kept = importlib.util.find_spec  # as a library does that imports the function
        assert not _is_found()
        assert importlib.util.find_spec("json") is not None
        for name in ("heavy_optional", "heavy_optional.part"):
            with pytest.raises(ModuleNotFoundError, match="No module named 'heavy_optional"):
                importlib.import_module(name)
    assert _is_found()
    assert kept("heavy_optional") is not None
    assert importlib.import_module("heavy_optional.part").VALUE == 3
    assert (sys.meta_path, importlib.util.find_spec) == (finders, find_spec)


@pytest.mark.usefixtures("packages")
def test_it_is_found_again_after_an_error_and_within_another_thread() -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append((_is_found(), importlib.import_module("heavy_optional"))))

    def broken() -> None:
        with packages_hidden({"heavy_optional"}):
            thread.start()
            thread.join()
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert [is_found for is_found, _ in found] == [True]
    assert _is_found()


@pytest.mark.usefixtures("packages")
def test_what_is_imported_already_is_not_hidden() -> None:
    importlib.import_module("heavy_optional")
    with packages_hidden({"heavy_optional"}):
        assert importlib.import_module("heavy_optional.part").VALUE == 3


@pytest.mark.usefixtures("packages")
def test_a_deferred_module_is_imported_at_its_first_use() -> None:
    defer_import("heavy_optional.part")
    import heavy_optional.part  # type: ignore[import-not-found]
    from heavy_optional import part as by_name  # type: ignore[import-not-found]

    assert by_name is heavy_optional.part
    inspect.getmodule(test_a_deferred_module_is_imported_at_its_first_use)  # reads a file name of every module
    assert not hasattr(by_name, "__wrapped__")
    assert "VALUE" not in vars(by_name)
    assert by_name.VALUE == 3
    assert heavy_optional.part is sys.modules["heavy_optional.part"]
    assert heavy_optional.part is not by_name
    assert (heavy_optional.part.VALUE, by_name.VALUE) == (3, 3)
    with pytest.raises(AttributeError):
        _ = by_name.MISSING


@pytest.mark.usefixtures("packages")
def test_names_can_be_imported_from_a_deferred_module() -> None:
    defer_import("heavy_optional.part")
    from heavy_optional.part import VALUE  # type: ignore[import-not-found]

    assert VALUE == 3


@pytest.mark.usefixtures("packages")
def test_what_is_missing_or_imported_is_not_deferred() -> None:
    before = importlib.import_module("heavy_optional.part")
    for name in ("heavy_optional.part", "heavy_optional.missing", "no_such_package.part"):
        defer_import(name)
    assert sys.modules["heavy_optional.part"] is before
    assert "heavy_optional.missing" not in sys.modules


@pytest.mark.parametrize("was_on", [True, False])
def test_collection_is_as_before_afterwards(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    try:
        with collection_off():
            assert not gc.isenabled()
        assert gc.isenabled() == was_on
    finally:
        gc.enable()
