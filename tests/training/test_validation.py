"""Validation: what it measures, that it leaves no trace, and what rests on it: the best model and an early stop."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.config.schema import Config
from modules.data.plans import EpochPlans
from modules.data.samples import AccumulationGroups
from modules.diffusion.weightings import min_snr_weights
from modules.formats.safetensors_io import read_safetensors
from modules.objectives.denoise import timestep_weights
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.callbacks import validation
from trainer.callbacks.best import Best, Search
from trainer.callbacks.validation import ValidationCallback
from trainer.commands import Command, Stop, ValidateNow
from trainer.events import (
    Event,
    ModelSaved,
    RunFailed,
    RunStarted,
    StepFinished,
    ValidationFinished,
    WarningRaised,
)

EVERY_STEP = {"every": {"n": 1, "unit": "step"}, "num_timesteps": 2}
ONE_EPOCH: dict[str, Any] = {"training": {"epochs": 1}}
HARD: dict[str, Any] = {
    "adapter": {"dropout": 0.3},
    "data": {"caption_dropout": 0.3},
    "training": {"ema": {"mode": "train_device", "decay": 0.9}},
    "parts": {"unet": {"checkpointing": "block"}, "text_encoder": {"train": True, "checkpointing": "block"}},
}


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("held out"), sizes=[(64, 64), (96, 64)])


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Config:
    return small_config(tmp_path, model=tiny_sd, images=images, parts={"text_encoder": {"train": False}})


def validated(config: Config, held_out: Path, workspace: str = "w2", **settings: Any) -> Config:
    """The config with two validation concepts, measured after every step, in a workspace of its own."""
    concepts = [c.model_dump() for c in config.concepts]
    concepts += [
        {"path": str(held_out), "kind": "validation", "name": "plain"},
        {"path": str(held_out), "kind": "validation", "name": "heavy", "loss_weight": 2.0},
    ]
    place = Path(config.general.workspace_dir).with_name(workspace)
    changes = {
        "general": {"workspace_dir": str(place)},
        "concepts": concepts,
        "validation": {**EVERY_STEP, **settings},
        "output": {"destination": str(place / "lora.safetensors")},
    }
    return laid_over(config, changes)


def play(monkeypatch: pytest.MonkeyPatch, losses: dict[int, float], otherwise: float = 1.0) -> None:
    """Let the validation after a step come to a loss of this test's choice."""
    plain = validation.summarise

    def summarise(measured: Any, step: int, best: Best, *, counts: bool) -> ValidationFinished:
        value = losses.get(step, otherwise)
        return plain({key: [(value, value)] for key in measured}, step, best, counts=counts)

    def measured(self: ValidationCallback) -> validation.Losses:
        self._desk.check()
        return {("plain", 500): [(1.0, 1.0)]}

    monkeypatch.setattr(validation, "summarise", summarise)
    monkeypatch.setattr(ValidationCallback, "_measure_all", measured)


def reported(ran: Ran) -> list[Event]:
    """The events of a run about its training."""
    numbers = ("epoch", "epoch_step", "step", "loss", "smoothed_loss", "gradient_norm", "learning_rates")
    return [tuple(getattr(e, n) for n in numbers) for e in ran.of(StepFinished)]  # type: ignore[misc]


@pytest.mark.daily(1)
@pytest.mark.parametrize("any_model", ["tiny_sd", "tiny_sdxl"], indirect=True)
def test_training_with_validation_ends_bit_equal(any_model: Path, images: Path, held_out: Path, tmp_path: Path) -> None:
    """Weights, EMA, optimizer and the metrics of every step; with dropout, EMA and checkpointing."""
    config = laid_over(small_config(tmp_path, model=any_model, images=images), HARD)
    without, beside = run(config), run(validated(config, held_out, keep_best=True))
    assert len(beside.of(ValidationFinished)) == 1 + len(beside.of(StepFinished))
    assert reported(without) == reported(beside)
    ours, theirs = (Path(r.finished.backup_path) for r in (without, beside))
    for name in ("weights", "ema", "optimizer"):
        assert_equal_tensors(load_file(ours / f"{name}.safetensors"), load_file(theirs / f"{name}.safetensors"))
    states = [json.loads((b / "state.json").read_text()) for b in (ours, theirs)]
    for state in states:
        del state["validation"], state["counters"]["training_seconds"]
    assert states[0] == states[1]
    assert_equal_tensors(load_file(without.finished.model_path), load_file(beside.finished.model_path))


class Backwards(AccumulationGroups):
    """Groups in the opposite order."""

    def __init__(self, groups: AccumulationGroups) -> None:
        super().__init__(
            groups._samples, groups._starts_B[::-1], groups._ends_B[::-1], accumulation_steps=groups._accumulation_steps
        )


def measured(result: ValidationFinished) -> tuple[object, ...]:
    return result.loss, result.weighted_loss, dict(result.by_concept), dict(result.by_timestep)


@pytest.mark.daily(1)
@pytest.mark.parametrize("any_model", ["tiny_sd", "tiny_sdxl"], indirect=True)
def test_caches_and_the_order_of_batches_change_no_number(
    any_model: Path, images: Path, held_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = {"text_encoder": {"train": False}, "text_encoder_2": {"train": False}}
    config = laid_over(
        small_config(tmp_path, model=any_model, images=images, training={"epochs": 1}), {"parts": frozen}
    )
    cached = run(validated(config, held_out)).of(ValidationFinished)
    off = {"data": {"latent_cache": False, "text_cache": False}}
    fresh = run(laid_over(validated(config, held_out, "w3"), off)).of(ValidationFinished)
    assert [measured(r) for r in cached] == [measured(r) for r in fresh]
    plain = EpochPlans.accumulation_groups

    def backwards(self: EpochPlans, epoch: int) -> AccumulationGroups:
        groups = plain(self, epoch)
        is_validation = any(c.name == "heavy" for c in self._dataset.concepts)
        return Backwards(groups) if is_validation else groups

    monkeypatch.setattr(EpochPlans, "accumulation_groups", backwards)
    turned = run(validated(config, held_out, "w4")).of(ValidationFinished)
    assert [measured(r) for r in cached] == [measured(r) for r in turned]


@pytest.mark.full
def test_two_validations_of_the_same_weights_give_the_same_numbers(config: Config, held_out: Path) -> None:
    """One after the other, and once more in a run that is resumed."""
    twice: list[ValidationFinished] = []
    plain = ValidationCallback._report
    hard = laid_over(validated(laid_over(config, HARD), held_out), ONE_EPOCH)

    def report_again(self: ValidationCallback, result: ValidationFinished) -> None:
        plain(self, result)
        again = validation.summarise(self._measure_all(), result.step, self.search.best, counts=True)
        assert measured(again) == measured(result)
        twice.append(again)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ValidationCallback, "_report", report_again)
        first = run(hard)
    assert len(twice) == len(first.of(ValidationFinished)) > 2

    def owe(self: Search) -> dict[str, Any]:
        return {"best": self.best.to_json(), "is_owed": True}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "state_dict", owe)
        owing = run(hard)
    longer = laid_over(hard, {"training": {"epochs": 2}, "validation": {"every": {"n": 1, "unit": "epoch"}}})
    again_run = run(longer, resume_from=Path(owing.finished.backup_path))
    assert again_run.finished.outcome == "finished"
    resumed = again_run.of(ValidationFinished)
    assert resumed[0].step == first.finished.step
    assert measured(resumed[0]) == measured(first.of(ValidationFinished)[-1])


def test_the_numbers_are_means_of_the_same_losses(config: Config, held_out: Path) -> None:
    gamma = {"training": {"loss": {"weighting": "min_snr", "gamma": 2.0}}}
    once = laid_over(config, ONE_EPOCH)
    seldom = {"every": {"n": 1, "unit": "epoch"}}
    plain = run(validated(once, held_out, **seldom)).of(ValidationFinished)[0]
    weighed = run(laid_over(validated(once, held_out, "w3", **seldom), gamma)).of(ValidationFinished)[0]
    assert plain.loss == weighed.loss == pytest.approx(math.fsum(plain.by_timestep.values()) / 2)
    assert set(plain.by_concept) == {"plain", "heavy"}
    assert plain.loss == pytest.approx(math.fsum(plain.by_concept.values()) / 2)
    assert plain.weighted_loss is not None
    # Without a weighting by noise only the concepts' own weights are left: 1 and 2.
    assert plain.weighted_loss == pytest.approx((plain.by_concept["plain"] + 2 * plain.by_concept["heavy"]) / 2)
    assert weighed.weighted_loss is not None
    assert weighed.weighted_loss < plain.weighted_loss


def test_the_weighted_loss_is_that_of_the_training(
    config: Config, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights come from the function that training weighs with, at the timesteps that are measured."""
    asked: list[tuple[int, ...]] = []

    def twofold(process: Any, timesteps_B: torch.Tensor, **settings: Any) -> torch.Tensor:
        asked.append(tuple(timesteps_B.tolist()))
        assert settings == {"weighting": "min_snr", "gamma": 5.0}
        assert timestep_weights(process, timesteps_B, **settings).equal(  # type: ignore[union-attr]
            min_snr_weights(process.snr(timesteps_B), gamma=5.0, prediction_type=process.prediction_type)
        )
        return torch.full(timesteps_B.shape, 2.0)

    monkeypatch.setattr("trainer.run.callbacks.timestep_weights", twofold)
    min_snr = {"training": {"epochs": 1, "loss": {"weighting": "min_snr"}}}
    validating = validated(config, held_out, every={"n": 1, "unit": "epoch"})
    concepts = [c.model_dump() for c in validating.concepts[:2]]
    found = run(laid_over(validating, {**min_snr, "concepts": concepts})).of(ValidationFinished)[0]
    assert found.weighted_loss == pytest.approx(2 * found.loss)
    assert {t for group in asked for t in group} == {250, 750}


# The best model


def kept(ran: Ran) -> list[int]:
    """After which steps the best model was kept."""
    return [s.step for s in ran.of(ModelSaved) if "-best" in Path(s.path).name]


@pytest.mark.full
def test_the_best_is_kept_and_can_be_the_result(
    config: Config, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, {0: 0.1, 1: 0.9, 2: 0.5, 3: math.nan, 4: 0.7})
    plain = laid_over(config, {"backup": {"save_every": {"n": 1, "unit": "step"}}})
    last = run(validated(plain, held_out, keep_best=True))
    best = run(validated(plain, held_out, "w3", keep_best=True, result="best"))
    for ran in (last, best):
        assert kept(ran) == [1, 2]  # what was lowest before the first step had learned nothing
        results = ran.of(ValidationFinished)
        assert [(r.best_step, r.best_loss) for r in results[:5]] == [
            (None, None),
            (1, 0.9),
            (2, 0.5),
            (2, 0.5),
            (2, 0.5),
        ]
        assert [r.step for r in results if r.is_best] == [1, 2]
        folder = Path(ran.of(RunStarted)[0].run_dir) / "save"
        assert_equal_tensors(
            load_file(folder / "lora-best.safetensors"), load_file(folder / "lora-step-00000002.safetensors")
        )
    end = last.finished.step
    folder = Path(last.of(RunStarted)[0].run_dir) / "save"
    assert_equal_tensors(
        load_file(folder / f"lora-step-{end:08d}.safetensors"), load_file(Path(last.finished.model_path))
    )
    final = best.of(ModelSaved)[-1]
    assert (final.step, final.is_final, final.path) == (2, True, best.finished.model_path)
    tensors, metadata = read_safetensors(Path(best.finished.model_path))
    assert_equal_tensors(tensors, load_file(folder / "lora-best.safetensors"))
    assert metadata["ss_steps"] == "2"
    assert "the best model by validation, from step 2 (loss 0.5)" in best.finished.message
    assert best.finished.step == end


def test_a_folder_can_be_the_best(config: Config, held_out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {1: 0.5, 2: 0.4})
    whole = {
        "training": {"trains": "full", "epochs": 1},
        "output": {"model_format": "diffusers", "destination": str(Path(config.output.destination).with_name("model"))},
    }
    ran = run(laid_over(validated(config, held_out, keep_best=True, result="best"), whole))
    best = Path(ran.of(RunStarted)[0].run_dir) / "save" / "model-best"
    result = Path(ran.finished.model_path)
    names = sorted(p.relative_to(best) for p in best.rglob("*") if p.is_file())
    assert len(names) > 5
    assert names == sorted(p.relative_to(result) for p in result.rglob("*") if p.is_file())
    assert all((best / n).read_bytes() == (result / n).read_bytes() for n in names)


def test_a_best_that_is_gone_leaves_the_last(config: Config, held_out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {2: 0.5})

    def remove(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, StepFinished) and event.step == 4:
            [best] = Path(config.general.workspace_dir).with_name("w2").glob("runs/*/save/lora-best.safetensors")
            best.unlink()

    ran = run(validated(config, held_out, keep_best=True, result="best"), on_event=remove)
    assert any("lora-best.safetensors is not in the run" in w.message for w in ran.of(WarningRaised))
    assert ran.of(ModelSaved)[-1].step == ran.finished.step
    assert "best" not in ran.finished.message


# The early stop


def test_the_run_stops_early_and_saves(config: Config, held_out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {1: 0.5, 2: 0.6, 3: 0.4, 4: 0.4, 5: math.nan})
    longer = laid_over(config, {"training": {"epochs": 9}})
    ran = run(validated(longer, held_out, early_stopping_patience=2))
    assert (ran.finished.outcome, ran.finished.step) == ("stopped_early", 5)
    assert ran.finished.message == "Stopped early after 5 steps: 2 validations in a row did not improve on step 3."
    assert ran.of(ModelSaved)[-1].is_final
    assert Path(ran.finished.model_path).is_file()
    assert Path(ran.finished.backup_path).is_dir()
    # Resumed with the same settings it ends again; with more patience it continues.
    again = run(validated(longer, held_out, early_stopping_patience=2), resume_from=Path(ran.finished.backup_path))
    assert (again.finished.outcome, again.finished.step) == ("stopped_early", 5)
    patient = run(validated(longer, held_out, early_stopping_patience=3), resume_from=Path(ran.finished.backup_path))
    assert (patient.finished.outcome, patient.finished.step) == ("stopped_early", 6)


def test_the_end_of_the_run_is_no_early_stop(config: Config, held_out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {1: 0.5})
    steps = len(run(config).of(StepFinished))
    ran = run(validated(config, held_out, early_stopping_patience=steps - 1))
    assert (ran.finished.outcome, ran.finished.step) == ("finished", steps)


def test_a_validation_asked_for_by_hand_never_stops_a_run(
    config: Config, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, {3: 0.5})
    seldom = validated(config, held_out, every={"n": 3, "unit": "step"}, early_stopping_patience=1)

    def ask(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, StepFinished) and event.step in (4, 5):
            send(ValidateNow())

    ran = run(seldom, on_event=ask)
    assert [r.step for r in ran.of(ValidationFinished)] == [0, 3, 4, 5, 6]
    assert (ran.finished.outcome, ran.finished.step) == ("finished", 6)
    asked = run(laid_over(seldom, {"training": {"epochs": 3}}), on_event=ask)
    assert (asked.finished.outcome, asked.finished.step) == ("stopped_early", 6)


@pytest.mark.full
@pytest.mark.parametrize("when", ["between validations", "in a validation"])
def test_a_resumed_run_knows_the_best_and_how_long_ago(
    config: Config, held_out: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    play(monkeypatch, {1: 0.9, 2: 0.3, 3: 0.6, 4: 0.5, 5: 0.4}, otherwise=0.5)
    longer = laid_over(config, {"training": {"epochs": 9}})
    settings: dict[str, Any] = {"keep_best": True, "result": "best", "early_stopping_patience": 3}
    straight = run(validated(longer, held_out, "straight", **settings))
    assert (straight.finished.outcome, straight.finished.step) == ("stopped_early", 5)

    def stop(event: Event, send: Callable[[Command], None]) -> None:
        if when == "between validations":
            is_time = isinstance(event, ValidationFinished) and event.step == 3
        else:
            is_time = isinstance(event, StepFinished) and event.step == 3
        if is_time:
            send(Stop())

    halves = validated(longer, held_out, "halves", **settings)
    first = run(halves, on_event=stop)
    assert (first.finished.outcome, first.finished.step) == ("stopped", 3)
    second = run(halves, resume_from=Path(first.finished.backup_path))
    assert (second.finished.outcome, second.finished.step) == ("stopped_early", 5)
    assert second.finished.message == straight.finished.message
    reported_twice = [*first.of(ValidationFinished), *second.of(ValidationFinished)]
    assert reported_twice == straight.of(ValidationFinished)
    states = [json.loads((Path(r.finished.backup_path) / "state.json").read_text()) for r in (straight, second)]
    assert states[0]["validation"] == states[1]["validation"]
    assert kept(first) == [1, 2]
    assert kept(second) == []
    assert second.of(ModelSaved)[-1].step == 2
    assert_equal_tensors(straight.weights, second.weights)


def test_losses_on_other_noise_levels_are_not_compared(
    config: Config, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, {1: 0.1}, otherwise=0.5)
    first = run(laid_over(validated(config, held_out), ONE_EPOCH))
    longer = laid_over(validated(config, held_out, num_timesteps=3), {"training": {"epochs": 2}})
    second = run(longer, resume_from=Path(first.finished.backup_path))
    assert any("The search for the best model starts again" in w.message for w in second.of(WarningRaised))
    assert second.of(ValidationFinished)[0].is_best
    same = run(laid_over(validated(config, held_out), {"training": {"epochs": 2}}),
               resume_from=Path(first.finished.backup_path))  # fmt: skip
    assert same.of(ValidationFinished)[0].best_step == 1


@pytest.mark.full
def test_a_backup_from_before_there_was_a_best_is_resumed(config: Config, held_out: Path) -> None:
    validating = laid_over(validated(config, held_out), ONE_EPOCH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "state_dict", lambda self: {})
        first = run(validating)
    resumed = run(laid_over(validating, {"training": {"epochs": 2}}), resume_from=Path(first.finished.backup_path))
    assert resumed.finished.outcome == "finished"
    assert resumed.of(ValidationFinished)[0].is_best


def test_a_best_that_could_not_be_written_is_tried_again(
    config: Config, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails; resumed, it repeats that validation and keeps the best."""
    from trainer.callbacks.saving import SavingCallback

    play(monkeypatch, {1: 0.5}, otherwise=0.7)
    settings = validated(config, held_out, keep_best=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            SavingCallback, "save_best", lambda self, counters, by: (_ for _ in ()).throw(OSError(28, "full"))
        )
        broken = run(settings)
    assert isinstance(broken.ending, RunFailed)
    resumed = run(settings, resume_from=Path(broken.ending.backup_path))
    assert kept(resumed) == [1]
    assert resumed.of(ValidationFinished)[0].step == 1
