"""Forks with weights only: they start from what the other run validated and saved, and that is their original model."""

from __future__ import annotations

import functools
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file

from modules.config.schema import Config
from modules.settings.edit import set_path
from tests.builders.configs import USUAL_LAYERS, laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.preference import draw_both, preference_config
from tests.builders.runs import Ran, assert_equal_tensors
from trainer.callbacks.saving import SavingCallback
from trainer.commands import Command, CommandDesk, Stop
from trainer.events import Event, ModelSaved, StepFinished, ValidationFinished
from trainer.launch import RunRequest
from trainer.methods import denoise
from trainer.run.execute import execute_guarded

Trained = Callable[[str], Path]
"""Returns the last backup of a run of the adapter or of the whole model."""

FULL: dict[str, Any] = {"training": {"trains": "full"}, "output": {"dtype": "float32"}}


def start(config: Config, kind: Any = "train", backup: Path | None = None, *, stop_at: int = 0) -> Ran:
    ran, desk = Ran(), CommandDesk()

    def emit(event: Event) -> None:
        ran.events.append(event)
        if isinstance(event, StepFinished) and event.step == stop_at:
            stop: Command = Stop()
            desk.put(stop)

    execute_guarded(RunRequest(config, kind, backup, in_window=False), emit=emit, desk=desk)
    assert ran.finished
    return ran


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_both(tmp_path_factory.mktemp("drawn"))


@pytest.fixture(scope="module")
def trained(tiny_sd: Path, drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    @functools.cache
    def backup_of(trains: str) -> Path:
        config = small_config(
            tmp_path_factory.mktemp(trains),
            model=tiny_sd,
            images=drawn / "images",
            training={"trains": trains, "epochs": 3, "learning_rate": 0.02 if trains == "adapter" else 1e-3},
            output={"dtype": "float32"},
            adapter=USUAL_LAYERS,
        )
        return Path(start(config).finished.backup_path)

    return backup_of


# -- the reference


@pytest.mark.full
@pytest.mark.parametrize("trains", ["adapter", "full"])
@pytest.mark.parametrize("method", ["dpo", "grpo", "ddpo", "online_dpo", "spo"])
def test_the_reference_is_what_the_fork_starts_from(
    tiny_sd: Path, drawn: Path, tmp_path: Path, trained: Trained, method: str, trains: str
) -> None:
    """It used to be the base model: a first loss near 0 instead of ln 2, and a KL divergence far from 0."""
    config = preference_config(tmp_path, model=tiny_sd, drawn=drawn, method=method)
    config = laid_over(config, {**(FULL if trains == "full" else {})})
    first = start(config, "fork_weights", trained(trains)).of(StepFinished)[0]
    if method in ("grpo", "ddpo"):
        assert first.metrics["kl"] == pytest.approx(0, abs=1e-9)
    else:
        assert first.loss == pytest.approx(math.log(2), abs=1e-6)
        assert first.metrics["margin"] == 0


@pytest.mark.full
@pytest.mark.parametrize("trains", ["adapter", pytest.param("full", marks=pytest.mark.full)])
def test_the_reference_stays_when_the_fork_is_resumed_or_forked_and_the_other_run_is_gone(
    tiny_sd: Path, drawn: Path, tmp_path: Path, trained: Trained, trains: str
) -> None:
    parent = tmp_path / "parent" / "runs" / "run"
    shutil.copytree(trained(trains).parent.parent, parent)
    backup = parent / "backup" / trained(trains).name

    def config_in(name: str) -> Config:
        config = preference_config(tmp_path / name, model=tiny_sd, drawn=drawn, method="dpo", training={"epochs": 4})
        return laid_over(config, {**(FULL if trains == "full" else {})})

    straight = start(config_in("straight"), "fork_weights", backup)
    stopped = start(config_in("stopped"), "fork_weights", backup, stop_at=2)
    shutil.rmtree(parent)
    expected = [s.loss for s in straight.of(StepFinished)][2:]
    forked = start(config_in("stopped"), "fork", Path(stopped.finished.backup_path))
    resumed = start(config_in("stopped"), "resume", Path(stopped.finished.backup_path))
    assert [s.loss for s in resumed.of(StepFinished)] == expected
    assert [s.loss for s in forked.of(StepFinished)] == expected


# -- the weights


@pytest.mark.full
@pytest.mark.parametrize(
    "training",
    [
        {"ema": {"mode": "train_device", "decay": 0.5}},
        {"optimizer": {"name": "schedule_free_adamw"}},
        {"optimizer": {"name": "schedule_free_sgd"}},
        {"optimizer": {"name": "prodigy_plus_schedule_free"}},
        {},
    ],
    ids=["EMA", "schedule-free AdamW", "schedule-free SGD", "Prodigy+", "weights"],
)
def test_a_fork_starts_from_the_weights_that_were_validated_and_saved(
    tiny_sd: Path, images: Path, tmp_path: Path, training: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to start from those that the optimizer trains at."""
    every = {"n": 1, "unit": "epoch"}
    config = small_config(
        tmp_path,
        model=tiny_sd,
        images=images,
        training={"epochs": 2, "learning_rate": 0.01, **training},
        concepts=[{"path": str(images)}, {"path": str(images), "kind": "validation"}],
        validation={"every": every},
        backup={"save_every": {"unit": "never"}},
        output={"dtype": "float32"},
    )
    parent = start(config)
    [result] = [s for s in parent.of(ModelSaved) if s.is_final]
    before_training: list[Path] = []
    plain = SavingCallback.dry_run_checks

    def checks(self: SavingCallback, state: Any) -> Any:
        if not before_training:
            before_training.append(tmp_path / "start.safetensors")
            self.save(before_training[0], state.counters, is_final=False)
        return plain(self, state)

    monkeypatch.setattr(SavingCallback, "dry_run_checks", checks)
    other, _ = set_path(config, "training.optimizer", {"name": "adamw"})
    changes = {"training": {"ema": {"mode": "off"}}, "output": {"destination": str(tmp_path / "other.safetensors")}}
    other = laid_over(other, changes)
    child = start(other, "fork_weights", Path(parent.finished.backup_path))
    assert_equal_tensors(load_file(Path(result.path)), load_file(before_training[0]))
    of_parent = parent.of(ValidationFinished)[-1]
    assert child.of(ValidationFinished)[0].loss == pytest.approx(of_parent.loss, rel=1e-5)


# -- the original model of prior predictions


@pytest.mark.full
@pytest.mark.parametrize("kind", ["concept", "mask"])
def test_the_original_model_keeps_the_embedding_that_it_started_with(
    tiny_sd: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """With a LoRA, only that was switched off: the trained embedding moved the original model, too."""
    predictions: list[Any] = []
    plain = denoise._prior_of

    def prior_of(*arguments: Any) -> Any:
        found = plain(*arguments)
        predictions.append(found.prediction_BCHW.clone())
        return found

    monkeypatch.setattr(denoise, "_prior_of", prior_of)

    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2, captions=["a <zog>"])
    concepts: list[dict[str, Any]] = [{"path": str(images)}, {"path": str(images), "kind": "prior_prediction"}]
    masks: dict[str, Any] = {}
    if kind == "mask":
        concepts, masks = concepts[:1], {"enabled": True, "prior_preservation_weight": 1.0}
        for image in sorted(images.glob("*.png")):
            Image.new("L", (64, 64), 128).save(images / f"{image.stem}-masklabel.png")

    def predicted(name: str, rate: float) -> list[Any]:
        predictions.clear()
        word = {"placeholder": "<zog>", "initial_text": "disc", "learning_rate": rate * 10}
        config = small_config(
            tmp_path / name,
            model=tiny_sd,
            images=images,
            concepts=concepts,
            masks=masks,
            training={"epochs": 3, "batch_size": 1, "learning_rate": rate},
            embeddings={"words": [word]},
        )
        start(config)
        return [p.clone() for p in predictions]

    moving, standing = predicted("moving", 0.01), predicted("standing", 1e-30)
    assert len(moving) == len(standing) >= 3
    assert all((a == b).all() for a, b in zip(moving, standing, strict=True))
