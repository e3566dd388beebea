"""Prior prediction concepts: their target is the prediction of the model as it was before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.adapters.lora_layers import LoraShape, attach_lora
from modules.config.schema import Config
from modules.config.usage import uses_prior
from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.estimate.architecture import architecture_of
from modules.estimate.run import estimate
from modules.families.registry import FAMILIES
from modules.memory.checkpointing import offloaded_weights
from modules.memory.frozen_copy import FrozenCopy
from modules.objectives.denoise import Prior
from modules.settings.edit import set_path
from modules.system.devices import CPU
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import assert_equal_tensors, run, stop_at
from trainer.methods import denoise
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepContext, StepLoss
from trainer.preflight.memory_plan import run_plan
from trainer.preflight.passes import passes_of
from trainer.run.data import mask_rules
from trainer.run.machine import machine_of
from trainer.run.model import load_model
from trainer.run.start import original_of
from trainer.step.precision import Precision
from trainer.step.prediction_modes import prior_mode

FULL: dict[str, Any] = {"training": {"trains": "full"}, "output": {"dtype": "float32"}}
STANDING: dict[str, Any] = {"training": {"learning_rate": 1e-30}}  # no weight moves
OFFLOADED: dict[str, Any] = {
    "general": {"temp_device": "cpu:1"},
    "parts": {"unet": {"checkpointing": "block", "offload_fraction": 0.6}},
}


@pytest.fixture
def config(any_model: Path, tmp_path: Path) -> Config:
    return config_of(any_model, tmp_path)


@pytest.fixture
def sd_config(tiny_sd: Path, tmp_path: Path) -> Config:
    return config_of(tiny_sd, tmp_path)


def config_of(model: Path, folder: Path) -> Config:
    """A run in which each batch is of one of two concepts; all text encoders are trained."""
    images = draw_folder(folder / "images", sizes=[(64, 64)] * 2, captions=["a disc"])
    prior = draw_folder(folder / "prior", sizes=[(64, 64)] * 2, captions=["a square"])
    concepts = [{"path": str(images)}, {"path": str(prior), "kind": "prior_prediction"}]
    return small_config(folder, model=model, images=images, concepts=concepts, training={"batch_size": 1})


Losses = list[tuple[Batch, float]]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Losses:
    """The batches of a run with their losses, as they are trained."""
    seen: Losses = []
    plain = Denoise.loss

    def loss(self: Denoise, batch: Batch, context: StepContext) -> StepLoss:
        found = plain(self, batch, context)
        seen.append((batch, found.loss.item()))
        return found

    monkeypatch.setattr(Denoise, "loss", loss)
    return seen


def split(trained: Losses) -> tuple[list[float], list[float]]:
    """The losses of training images and of prior images."""
    return [x for b, x in trained if not b.prior_samples], [x for b, x in trained if b.prior_samples]


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lokr": {"name": "lokr", "rank": 2}},
        {"adapter": {"dropout": 0.5}, "training": {"precision": "bfloat16"}},
        FULL,
        {**FULL, "training": {"trains": "full", "precision": "bfloat16"}},
        {**FULL, "parts": {"unet": {"dtype": "bfloat16", "checkpointing": "whole"}}},
    ],
    ids=["lora", "lokr", "lora in bfloat16", "full", "full in bfloat16", "16-bit weights"],
)
def test_an_untrained_model_is_its_own_prior(config: Config, trained: Losses, changes: dict[str, Any]) -> None:
    changed = set_path(config, "adapter", changes["lokr"])[0] if "lokr" in changes else laid_over(config, changes)
    run(laid_over(changed, STANDING))
    training, prior = split(trained)
    assert min(training) > 1e-3
    assert set(prior) == {0.0}


@pytest.fixture
def priors(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The predictions of the original model in a run."""
    seen: list[torch.Tensor] = []
    plain = denoise._prior_of

    def prior_of(*arguments: Any) -> Prior:
        seen.append((found := plain(*arguments)).prediction_BCHW)
        return found

    monkeypatch.setattr(denoise, "_prior_of", prior_of)
    return seen


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [{}, {"adapter": {"dropout": 0.5}}, FULL, {**FULL, "training": {"trains": "full", "precision": "bfloat16"}}],
)
def test_the_prior_stays_the_same_while_the_model_moves(
    sd_config: Config, trained: Losses, priors: list[torch.Tensor], changes: dict[str, Any]
) -> None:
    """A step's noise and timesteps depend on its number alone, so two runs compare bit for bit."""
    moving = laid_over(laid_over(sd_config, changes), {"training": {"learning_rate": 0.01, "epochs": 3}})
    run(moving)
    assert split(trained)[1][-1] > 1e-6
    moved = priors.copy()
    priors.clear()
    run(laid_over(moving, STANDING))
    assert len(moved) == len(priors) >= 6
    assert all(map(torch.equal, moved, priors))


def test_mixed_batches_take_each_sample_s_own_target(sd_config: Config, trained: Losses) -> None:
    """With a batch of all four images, the loss is the mean of those of the training images alone, as the rest is 0."""
    run(laid_over(sd_config, {"training": {"batch_size": 4, "learning_rate": 1e-30, "epochs": 1}}))
    mixed, loss = trained[-1]
    assert sorted(mixed.prior_samples) == [False, False, True, True]
    assert loss > 0
    own = [c.model_dump() for c in sd_config.concepts]
    trained.clear()
    silent = [own[0], {**own[1], "kind": "training", "loss_weight": 0.0}]
    run(laid_over(sd_config, {"concepts": silent, "training": {"batch_size": 4, "learning_rate": 1e-30, "epochs": 1}}))
    assert trained[-1][1] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("unmasked_weight", [0.1, 1.0])
def test_masks_ask_for_a_prior_where_the_run_has_one(sd_config: Config, unmasked_weight: float) -> None:
    """Full weight outside of the masks leaves nothing to preserve: such a run failed in its first step."""
    masks = {"enabled": True, "unmasked_weight": unmasked_weight, "prior_preservation_weight": 0.5}
    of_images = [concept.model_dump() for concept in sd_config.concepts if concept.kind == "training"]
    config = laid_over(sd_config, {"masks": masks, "concepts": of_images})
    rules = mask_rules(config.masks, inpaints=False, is_validation=False)
    assert (rules.preservation_weight > 0) == uses_prior(config) == (unmasked_weight < 1)


@pytest.mark.full
def test_a_fine_tune_resumes_with_the_prior_of_the_base_model(sd_config: Config) -> None:
    full = laid_over(laid_over(sd_config, FULL), {"training": {"epochs": 3}})
    whole = run(full)

    stopped = run(full, on_event=stop_at(5))
    resumed = run(full, resume_from=Path(stopped.finished.backup_path))
    assert_equal_tensors(resumed.weights, whole.weights)


@pytest.mark.full
def test_offloaded_layers_have_the_same_prior(sd_config: Config) -> None:
    full = laid_over(laid_over(sd_config, FULL), {"parts": {"unet": {"checkpointing": "block"}}})
    assert_equal_tensors(run(laid_over(full, OFFLOADED)).weights, run(full).weights)


def test_a_frozen_copy_gives_the_former_values_back_and_restores_the_current_ones() -> None:
    layer = torch.nn.Linear(3, 2)
    inputs = torch.ones(1, 3)
    copy, before = FrozenCopy(layer.parameters()), layer(inputs)
    with torch.no_grad():
        layer.weight.mul_(2)
    current = layer.weight.data_ptr(), layer.weight.detach().clone()

    def broken() -> None:
        with copy.swapped_in():
            assert torch.equal(layer(inputs), before)
            assert not layer(inputs).requires_grad
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert layer.weight.data_ptr() == current[0]
    assert torch.equal(layer.weight, current[1])
    assert layer.weight.requires_grad


def test_a_frozen_lora_stays_frozen_while_it_is_disabled() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4))
    adapter = attach_lora("part", module, ["0"], LoraShape(2, 2.0, 0.0, torch.float32), seed=0)
    for trains in (True, False):
        for parameter in adapter.parameters().values():
            parameter.requires_grad_(trains)
        with adapter.disabled():
            pass
        assert {p.requires_grad for p in adapter.parameters().values()} == {trains}


@pytest.mark.parametrize("changes", [{}, {"parts": {"text_encoder": {"train": False}}}, OFFLOADED])
def test_the_copy_is_what_the_estimate_counts(sd_config: Config, changes: dict[str, Any]) -> None:
    changed = laid_over(laid_over(sd_config, FULL), changes)
    architecture = architecture_of(changed.model.base_model, "sd")
    assert architecture is not None
    plan = run_plan(changed, architecture, [Size(64, 64)])
    assert plan is not None
    training = estimate(passes_of(FAMILIES["sd"], architecture.configs), plan).phase("training")
    assert training is not None
    model = load_model(changed, machine_of(changed.general, changed.training.precision))
    offloaded = {id(w) for part in model.family.parts.values() for w in offloaded_weights(part.module)}
    assert bool(offloaded) == ("general" in changes)
    copied = [w for copy in original_of(changed, model, has_start_weights=False).copies for w in copy.weights]
    assert {id(w) for w in copied} == {id(p) for g in model.groups for p in g.parameters.values()}
    here = sum(w.nbytes for w in copied if id(w) not in offloaded)
    # The estimate is exact, but for which small weights of offloaded blocks stay.
    assert dict(training.parts)["original weights"] == pytest.approx(here, rel=0.02 if offloaded else 0)
    model.placement.close()


def test_only_a_fine_tune_with_a_prior_keeps_a_copy(sd_config: Config) -> None:
    own = [c.model_dump() for c in sd_config.concepts]
    disabled = {**own[1], "enabled": False}
    for changes in ({}, {**FULL, "concepts": own[:1]}, {**FULL, "concepts": [own[0], disabled]}):
        changed = laid_over(sd_config, changes)
        model = load_model(changed, machine_of(changed.general, changed.training.precision))
        assert original_of(changed, model, has_start_weights=False).copies == ()
        model.placement.close()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_casts_of_the_original_weights_are_not_kept_for_the_current_ones(precision: str) -> None:
    layer, inputs, mode = torch.nn.Linear(8, 8), torch.ones(1, 8), Precision(precision, CPU)
    original = FrozenCopy(layer.parameters())
    with mode.autocast():
        before = layer(inputs)
    with torch.no_grad():
        layer.weight.add_(1.0)
    with mode.autocast():
        expected = layer(inputs)
    with mode.autocast():
        with prior_mode([], [original], [layer], mode):
            assert torch.equal(layer(inputs), before)
        after = layer(inputs)
        with prior_mode([], [original], [layer], mode):
            assert torch.equal(layer(inputs), before)
    assert torch.equal(after, expected)
    assert after.requires_grad
