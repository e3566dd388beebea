"""What a run imports is imported and frozen ahead of it, so that its collections do not walk it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from modules.config.schema import Config
from trainer import launch
from trainer.run import imports


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are imported, in order; each is new the first time, and two cannot be imported."""
    names: list[str] = []

    def import_module(name: str) -> None:
        names.append(name)
        if name in ("peft", "torch.utils.tensorboard.summary"):
            raise ImportError(name)
        sys.modules.setdefault(f"fake.{name}", SimpleNamespace())  # type: ignore[arg-type]

    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(imports, "importlib", SimpleNamespace(import_module=import_module))
    return names


def names_of(**changes: object) -> Sequence[str]:
    return list(imports.modules_of(Config.model_validate(changes)))


def test_the_modules_follow_from_the_choices() -> None:
    lora = names_of()
    assert {
        "modules.families.sd.model",
        "diffusers.models.unets.unet_2d_condition",
        "modules.adapters.lora_layers",
        "trainer.methods.denoise",
        "torch.utils.tensorboard.summary",
    } <= {*lora}
    assert "modules.families.sdxl.model" in names_of(model={"family": "sdxl"})
    assert "modules.adapters.lora_layers" not in names_of(training={"trains": "full"})
    assert "torch.utils.tensorboard.summary" not in names_of(general={"tensorboard": False})
    assert "trainer.methods.alignprop" in names_of(training={"method": {"name": "alignprop"}})


def test_each_is_imported_once_and_a_missing_one_is_left_to_the_run(imported: list[str]) -> None:
    assert imports.import_for(Config())
    assert len(imported) == len(set(imported))
    assert "torch.utils.tensorboard.summary" in imported
    assert not imports.import_for(Config())


def test_only_new_modules_are_frozen(imported: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(imported)))
    for _ in range(2):
        launch.import_for(Config())
    assert frozen == [len(imported) / 2]


def test_they_are_imported_before_the_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(launch, "import_engine", lambda: done.append("the engine"))
    monkeypatch.setattr(launch, "import_for", lambda _config: done.append("its modules"))
    engine = SimpleNamespace(execute_guarded=lambda *_arguments, **_named: done.append("the run"))
    monkeypatch.setitem(sys.modules, "trainer.run.execute", engine)
    launch.launch(launch.RunRequest(Config())).thread.join()
    assert done == ["the engine", "its modules", "the run"]
