"""Diffusion-DPO on offline pairs: the first loss, gradients, the reference, caches, resume, and what is refused."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.schema import Config
from modules.data.batch import Batch
from modules.data.datasets import build_datasets
from modules.data.plan_table import describe_buckets, plan_rows
from modules.data.samples import SampleIndex
from modules.data.versions import ImageVersions
from modules.families.protocol import ModelFamily
from modules.memory.frozen_copy import FrozenCopy
from modules.objectives.preference import PairErrors
from modules.settings.edit import set_path
from modules.system.devices import CPU
from modules.system.problem import describe_data
from tests.builders.configs import USUAL_LAYERS, laid_over, small_config
from tests.builders.flow_models import FLOW_MODELS
from tests.builders.images import draw_folder
from tests.builders.pairs import draw_pairs
from tests.builders.runs import Ran, assert_equal_tensors, run, stop_at
from tests.training.test_checkpointing import FRAME, Loss, assert_equal_gradients, gradients, memory_of, with_lora
from tests.training.test_checkpointing import trained as trained_family
from trainer.cli.console import words
from trainer.data.datasets import dataset_settings
from trainer.events import CacheFilled, RunStarted, StepFinished, ValidationFinished
from trainer.methods import dpo
from trainer.methods.denoise import Denoise
from trainer.methods.dpo import Dpo, PairLoss
from trainer.methods.protocol import StepContext, StepLoss
from trainer.preflight import check
from trainer.preflight.doctor import examine
from trainer.run.prune import unused_by
from trainer.step.precision import Precision
from trainer.step.prediction_modes import prior_mode
from ui.loop.wording import preview_lines

FULL: dict[str, Any] = {"training": {"trains": "full"}, "output": {"dtype": "float32"}}
MODELS = ["tiny_sd", "tiny_sd2", "tiny_sdxl", "tiny_sdxl_v", *FLOW_MODELS]  # the second and fourth predict v


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five pairs of two shapes; nobody may write to it."""
    return draw_pairs(tmp_path_factory.mktemp("pairs"), sizes=[(64, 64)] * 3 + [(96, 64)] * 2)


def dpo_config(folder: Path, model: Path, pairs: Path, **method: Any) -> Config:
    """A run of six steps on pairs."""
    return small_config(
        folder,
        model=model,
        images=pairs,
        concepts=[{"path": str(pairs), "kind": "pairs"}],
        training={"method": {"name": "dpo", **method}},
    )


def short(config: Config) -> Config:
    """One epoch with the text encoders left alone."""
    parts = {name: {"train": False} for name in ("text_encoder", "text_encoder_2")}
    return laid_over(config, {"training": {"epochs": 1}, "parts": parts})


def losses(ran: Ran) -> list[float | None]:
    assert ran.finished.outcome == "finished"
    return [step.loss for step in ran.of(StepFinished)]


# ---- the first step


@pytest.mark.daily(2)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_the_first_loss_is_ln_2(
    request: pytest.FixtureRequest, tmp_path: Path, pairs: Path, model: str, trains: str
) -> None:
    config = dpo_config(tmp_path, request.getfixturevalue(model), pairs)
    config = laid_over(config, {"training": {"epochs": 1, "trains": trains}, "output": {"dtype": "float32"}})
    if model in FLOW_MODELS:  # T5 computes its attention in another way while its bias is trained: 1e-7, times beta
        config = short(config)
    first, *rest = run(config).of(StepFinished)
    assert first.loss == pytest.approx(math.log(2), abs=1e-6)
    assert first.metrics == {
        "implicit_accuracy": 0.5,
        "margin": 0.0,
        "negative_margins": 0.0,
        "chosen_error": 0.0,
        "rejected_error": 0.0,
    }
    assert first.gradient_norm is not None
    assert first.gradient_norm > 1e-3
    assert all(step.metrics["margin"] != 0 for step in rest)


@pytest.mark.parametrize(
    ("method", "first"),
    [
        ({"label_smoothing": 0.2}, math.log(2)),
        ({"loss": "ipo"}, 0.25),
        ({"loss": "ipo", "label_smoothing": 0.2}, 0.25),
    ],
    ids=str,
)
def test_every_loss_begins_as_published(
    tiny_sd: Path, tmp_path: Path, pairs: Path, method: dict[str, Any], first: float
) -> None:
    assert losses(run(short(dpo_config(tmp_path, tiny_sd, pairs, **method))))[0] == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize(
    "changes",
    [{"training": {"precision": "bfloat16"}}, {"adapter": {"dropout": 0.5}}, {"training": {"trains": "full"}}],
    ids=["bfloat16", "dropout", "full in bfloat16"],
)
def test_the_first_errors_are_those_of_the_reference_to_the_bit(
    tiny_sdxl: Path, tmp_path: Path, pairs: Path, changes: dict[str, Any]
) -> None:
    config = laid_over(short(dpo_config(tmp_path, tiny_sdxl, pairs)), changes)
    if config.training.trains == "full":
        config = laid_over(config, {"training": {"precision": "bfloat16"}, "output": {"dtype": "float32"}})
    first = run(config).of(StepFinished)[0].metrics
    assert (first["margin"], first["chosen_error"], first["rejected_error"]) == (0.0, 0.0, 0.0)


@pytest.mark.full
def test_an_adapter_that_starts_from_a_file_is_its_own_reference(tiny_sd: Path, tmp_path: Path, pairs: Path) -> None:
    """The margin of its first step is 0, and stays that of the same reference in a run that is resumed."""
    first = run(laid_over(short(dpo_config(tmp_path / "first", tiny_sd, pairs)), {"training": {"learning_rate": 0.02}}))
    changes = {"adapter": {"start_from": first.finished.model_path}, "training": {"epochs": 2}}

    def going_on(folder: str) -> Config:
        return laid_over(short(dpo_config(tmp_path / folder, tiny_sd, pairs)), changes)

    second = run(going_on("second"))
    assert losses(second)[0] == pytest.approx(math.log(2), abs=1e-6)
    assert [s.metrics["margin"] != 0 for s in second.of(StepFinished)] == [False, *[True] * (len(losses(second)) - 1)]

    stopped = run(going_on("third"), on_event=stop_at(2))
    resumed = run(going_on("third"), resume_from=Path(stopped.finished.backup_path))
    assert [s.loss for s in second.of(StepFinished)][2:] == losses(resumed)


def test_the_sft_weight_adds_the_error_of_the_chosen_images(tiny_sd: Path, tmp_path: Path, pairs: Path) -> None:
    added = [losses(run(short(dpo_config(tmp_path, tiny_sd, pairs, sft_weight=w))))[0] or 0.0 for w in (1.0, 2.0)]
    assert added[0] > math.log(2) + 0.1
    assert added[1] - math.log(2) == pytest.approx(2 * (added[0] - math.log(2)), rel=1e-4)


def test_mapo_needs_no_reference(tiny_sd: Path, tmp_path: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> AbstractContextManager[None]:
        raise AssertionError("the original model is not needed")

    monkeypatch.setattr("trainer.run.training_run.prior_mode", fail)
    ran = run(laid_over(short(dpo_config(tmp_path, tiny_sd, pairs, loss="mapo")), FULL))
    assert len(losses(ran)) == 3
    assert ran.of(StepFinished)[0].metrics["chosen_error"] > 0.1


def test_the_weight_of_a_concept_applies(tiny_sd: Path, tmp_path: Path, pairs: Path) -> None:
    config = dpo_config(tmp_path, tiny_sd, pairs)
    concept = {"path": str(pairs), "kind": "pairs", "loss_weight": 0.25}
    assert losses(run(short(laid_over(config, {"concepts": [concept]}))))[0] == pytest.approx(math.log(2) / 4, abs=1e-6)


# ---- gradients


def batch_of(chosen: torch.Tensor, rejected: torch.Tensor) -> Batch:
    num = len(chosen)
    return Batch(
        latents_BCHW=chosen,
        captions=("a red disc", "a cat")[:num],
        conditioning=None,
        loss_weights_B=torch.ones(num),
        size_conditionings=[FRAME] * num,
        sample_indices=[SampleIndex(i, 0, 0, 0) for i in range(num)],
        epoch=0,
        step=0,
        micro_batch=0,
        group_samples=num,
        is_last_micro_batch=True,
        rejected_latents_BCHW=rejected,
    )


def latents(seed: int) -> torch.Tensor:
    return torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(seed))


def refused(*_arguments: object) -> Any:
    raise AssertionError("not needed here")


def context_of(family: ModelFamily, prior: Callable[[], AbstractContextManager[None]]) -> StepContext:
    return StepContext(family, CPU, CPU, 5, refused, refused, refused, prior, refused, refused, refused, Path("unused"))


def pair_loss(
    prior_of: Callable[[ModelFamily], AbstractContextManager[None]], *, beta: float = 2000.0, is_swapped: bool = False
) -> Loss:
    """The loss of two pairs, against the reference within `prior_of(family)`."""
    chosen, rejected = (latents(2), latents(1)) if is_swapped else (latents(1), latents(2))

    def loss(family: ModelFamily) -> torch.Tensor:
        context = context_of(family, lambda: prior_of(family))
        return Dpo(PairLoss(beta=beta)).loss(batch_of(chosen, rejected), context).loss

    return loss


def priors(request: pytest.FixtureRequest, model: str, kind: str) -> tuple[ModelFamily, dict[str, Any], Loss]:
    """A family whose reference differs from it, its trained parameters, and the loss of its pairs."""
    folder = request.getfixturevalue(model)
    if kind == "lora":
        family, adapters = with_lora(folder)
        parameters = {n: p for a in adapters for n, p in a.parameters().items()}
        originals: list[FrozenCopy] = []
    else:
        family, parameters = trained_family(folder, "full")
        adapters, originals = [], [FrozenCopy(parameters.values())]
        generator = torch.Generator().manual_seed(4)
        for copy in originals[0].copies:
            copy.data += 0.01 * torch.randn(copy.shape, generator=generator)
    loss = pair_loss(lambda _: prior_mode(adapters, originals, [], Precision("float32", CPU)), beta=20.0)
    return family, parameters, loss


@pytest.mark.full  # every day: test_preference_matrix
@pytest.mark.parametrize("kind", ["lora", "full"])
@pytest.mark.parametrize("model", ["tiny_sd", "tiny_sdxl"])
def test_gradients_are_equal_with_any_checkpointing(request: pytest.FixtureRequest, model: str, kind: str) -> None:
    family, parameters, loss = priors(request, model, kind)
    plain = gradients(family, parameters, memory_of("off", ""), loss=loss)
    assert any(gradient.abs().max() > 1e-4 for gradient in plain.values() if gradient is not None)
    for mode in ("block", "whole"):
        assert_equal_gradients(gradients(family, parameters, memory_of(mode, ""), loss=loss), plain)


def flat(found: dict[str, torch.Tensor | None]) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in found.values() if gradient is not None])


def test_swapping_the_images_turns_the_first_gradient_around(tiny_sd: Path) -> None:
    """And it is proportional to beta. The reference is the model itself, as in the first step."""
    family, parameters = trained_family(tiny_sd, "full")

    def gradient(**changes: Any) -> torch.Tensor:
        loss = pair_loss(lambda _: torch.no_grad(), **changes)
        return flat(gradients(family, parameters, memory_of("off", ""), loss=loss))

    plain, swapped, weak = gradient(), gradient(is_swapped=True), gradient(beta=500.0)
    assert torch.allclose(swapped, -plain, rtol=1e-3, atol=1e-4 * float(plain.abs().max()))
    assert torch.equal(plain, 4 * weak)


# ---- the reference


@pytest.fixture
def references(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The errors of the reference model in a run."""
    seen: list[torch.Tensor] = []
    plain = dpo.pair_errors

    def pair_errors(*arguments: Any) -> PairErrors:
        found = plain(*arguments)
        if not torch.is_grad_enabled():
            seen.append(torch.stack([found.chosen_B, found.rejected_B]))
        return found

    monkeypatch.setattr(dpo, "pair_errors", pair_errors)
    return seen


@pytest.mark.full
@pytest.mark.parametrize("changes", [{}, FULL], ids=["lora", "full"])
def test_the_reference_stays_the_same_while_the_model_moves(
    tiny_sd: Path, tmp_path: Path, pairs: Path, references: list[torch.Tensor], changes: dict[str, Any]
) -> None:
    config = laid_over(dpo_config(tmp_path, tiny_sd, pairs), changes)
    moving = run(laid_over(config, {"training": {"learning_rate": 0.01}}))
    assert abs(moving.of(StepFinished)[-1].metrics["margin"]) > 0.1
    moved = references.copy()
    references.clear()
    run(laid_over(config, {"training": {"learning_rate": 1e-30}}))
    assert len(moved) == len(references) >= 6
    assert all(map(torch.equal, moved, references))


@pytest.mark.full
def test_a_run_learns_its_own_pairs(tiny_sd: Path, tmp_path: Path) -> None:
    """The loss falls and the implicit accuracy rises, on a random model."""
    pairs = draw_pairs(tmp_path / "pairs", sizes=[(64, 64)] * 4, captions=["a disc"])
    training = {"epochs": 40, "batch_size": 4, "learning_rate": 3e-3}
    parts = {"text_encoder": {"train": False}}
    learning = {"training": training, "parts": parts, "adapter": USUAL_LAYERS}
    config = laid_over(dpo_config(tmp_path, tiny_sd, pairs, beta=500), learning)
    steps = run(config).of(StepFinished)
    last = steps[-15:]
    assert sum(s.loss or 9.0 for s in last) / len(last) < math.log(2) - 0.05
    assert sum(s.metrics["implicit_accuracy"] for s in last) / len(last) > 0.75


# ---- the data


@pytest.mark.full
def test_latents_of_both_images_are_cached_once(tiny_sd: Path, tmp_path: Path, pairs: Path) -> None:
    config = laid_over(dpo_config(tmp_path, tiny_sd, pairs), {"parts": {"text_encoder": {"train": False}}})
    first, second = run(config), run(config)
    filled = [[(f.num_entries, f.num_found) for f in r.of(CacheFilled) if f.what == "images"] for r in (first, second)]
    assert filled == [[(10, 0)], [(10, 10)]]
    assert losses(first) == losses(second)
    unused = unused_by([config])
    assert (unused.entries, unused.num_used) == ((), 10 + 6)  # with the captions, one of them empty
    uncached = run(laid_over(config, {"data": {"latent_cache": False}}))
    assert losses(uncached) == pytest.approx(losses(first), rel=1e-3)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """The batches of a run."""
    seen: list[Batch] = []
    plain = Dpo.loss

    def loss(self: Dpo, batch: Batch, context: StepContext) -> StepLoss:
        seen.append(batch)
        return plain(self, batch, context)

    monkeypatch.setattr(Dpo, "loss", loss)
    return seen


def test_swapped_folders_exchange_the_latents(tiny_sd: Path, tmp_path: Path, batches: list[Batch]) -> None:
    """So that the first gradient turns around."""
    found = []
    for is_swapped in (False, True):
        pairs = draw_pairs(
            tmp_path / str(is_swapped), sizes=[(64, 64), (80, 64)], captions=["a"], is_swapped=is_swapped
        )
        run(short(dpo_config(tmp_path / str(is_swapped) / "run", tiny_sd, pairs)))
        found.append(batches.copy())
        batches.clear()
    for one, other in zip(*found, strict=True):
        assert other.rejected_latents_BCHW is not None
        assert torch.equal(one.latents_BCHW, other.rejected_latents_BCHW)
        assert not torch.equal(one.latents_BCHW, other.latents_BCHW)


@pytest.mark.parametrize("latent_cache", [True, False])
def test_equal_images_have_equal_latents_and_are_no_error(
    tiny_sd: Path, tmp_path: Path, batches: list[Batch], latent_cache: bool
) -> None:
    """With every augmentation. Nothing is learned, which is not an error, but said before the run."""
    folder = tmp_path / "pairs"
    draw_pairs(folder, sizes=[(90, 70)] * 3)
    shutil.rmtree(folder / "rejected")
    shutil.copytree(folder / "chosen", folder / "rejected")
    image = {"flip": "random", "crop_jitter": True, "brightness": "random", "brightness_max": 0.4}
    concept = {"path": str(folder), "kind": "pairs", "image": image, "image_variations": 2}
    changes = {"concepts": [concept], "data": {"latent_cache": latent_cache}}
    config = laid_over(dpo_config(tmp_path, tiny_sd, folder), changes)
    [said] = [p.message for p in check(config).problems if "same image" in p.message]
    assert said.startswith("3 pairs have the same image as the chosen and the rejected one")
    assert losses(run(config))[0] == pytest.approx(math.log(2), abs=1e-6)
    for batch in batches:
        assert batch.rejected_latents_BCHW is not None
        assert torch.equal(batch.latents_BCHW, batch.rejected_latents_BCHW)
        assert all(batch.same_pairs)


def test_images_without_pairs_have_no_rejected_latents(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)])
    seen: list[Batch] = []
    plain = Denoise.loss

    def loss(self: Denoise, batch: Batch, context: StepContext) -> StepLoss:
        seen.append(batch)
        return plain(self, batch, context)

    monkeypatch.setattr(Denoise, "loss", loss)
    run(short(small_config(tmp_path, model=tiny_sd, images=images)))
    assert {(b.rejected_latents_BCHW, b.same_pairs) for b in seen} == {(None, ())}


def test_a_dropped_caption_is_dropped_for_both_images(tiny_sd: Path, tmp_path: Path, batches: list[Batch]) -> None:
    pairs = draw_pairs(tmp_path / "pairs", sizes=[(64, 64)] * 6, captions=["a disc"])
    run(short(laid_over(dpo_config(tmp_path, tiny_sd, pairs), {"data": {"caption_dropout": 0.5}})))
    given = [c for b in batches for c in b.captions]
    assert {"", "a disc"} == set(given)
    assert all(len(b.captions) == len(b.latents_BCHW) for b in batches)


@pytest.mark.full
def test_a_stopped_run_resumes_bit_for_bit(tiny_sd: Path, tmp_path: Path, pairs: Path) -> None:
    changes = {"training": {"trains": "full", "epochs": 2, "accumulation_steps": 2, "ema": {"mode": "train_device"}}}
    config = laid_over(dpo_config(tmp_path, tiny_sd, pairs), changes)
    whole = run(config)
    other = laid_over(config, {"general": {"workspace_dir": str(tmp_path / "other")}})

    stopped = run(other, on_event=stop_at(2))
    resumed = run(other, resume_from=Path(stopped.finished.backup_path))
    assert losses(whole)[2:] == losses(resumed)
    assert_equal_tensors(whole.weights, resumed.weights)


def test_a_pair_whose_image_has_changed_does_not_resume(tiny_sd: Path, tmp_path: Path) -> None:
    """The order of an epoch is that of the same pairs: a changed rejected image is another set of images."""
    pairs = draw_pairs(tmp_path / "pairs", sizes=[(64, 64)] * 3)
    config = dpo_config(tmp_path, tiny_sd, pairs)
    datasets = build_datasets(dataset_settings(config))
    assert datasets.is_current()
    shutil.copy(pairs / "chosen" / "000.png", pairs / "rejected" / "000.png")
    assert not datasets.is_current()


def test_validation_pairs_are_validated_on(tiny_sd: Path, tmp_path: Path, pairs: Path) -> None:
    config = dpo_config(tmp_path, tiny_sd, pairs)
    held_out = draw_pairs(tmp_path / "held-out", sizes=[(64, 64)] * 2)
    concepts = [{"path": str(pairs), "kind": "pairs"}, {"path": str(held_out), "kind": "validation_pairs"}]
    validation = {"every": {"n": 3, "unit": "step"}}
    config = laid_over(config, {"concepts": concepts, "validation": validation})
    ran = run(config)
    assert len(ran.of(ValidationFinished)) == 3
    assert not check(config).errors


# ---- what is refused and said


def messages(config: Config) -> list[str]:
    return [p.message for p in check(config).problems if p.severity != "info"]


def test_the_method_and_the_concepts_must_fit(tiny_sd: Path, tmp_path: Path, pairs: Path, images: Path) -> None:
    config = dpo_config(tmp_path, tiny_sd, pairs)
    assert messages(config) == []
    mixed = [{"path": str(pairs), "kind": "pairs"}, {"path": str(images), "name": "cats"}]
    assert messages(laid_over(config, {"concepts": mixed})) == [
        "Diffusion-DPO trains on pairs of images, but the concept cats holds single ones."
    ]
    needed, _ = messages(laid_over(config, {"concepts": [{"path": str(images)}]}))
    assert needed == "Diffusion-DPO needs pairs of images, but no concept holds any."
    assert "method" in {p.remedy for p in check(laid_over(config, {"concepts": [{"path": str(images)}]})).problems}
    denoising = set_path(config, "training.method", "denoise")[0]
    assert f"The concept {pairs.name} holds preference pairs, which Denoising does not train on." in messages(denoising)


def test_settings_without_effect_are_said(tiny_sd: Path, tmp_path: Path, pairs: Path) -> None:
    config = dpo_config(tmp_path, tiny_sd, pairs)
    masks = {"enabled": True, "prior_preservation_weight": 0.5}
    changes = {"training": {"loss": {"weighting": "min_snr"}}, "masks": masks}
    found = messages(laid_over(config, changes))
    assert "Loss weighting has no effect (not used: Diffusion-DPO has a loss of its own)." in found
    assert any(m.startswith("Masked prior preservation has no effect with Diffusion-DPO") for m in found)
    cut = {"concepts": [{"path": str(pairs), "kind": "pairs", "image": {"mask_rotate_crop": True}}]}
    assert any("crops to masks" in m for m in messages(laid_over(config, cut)))


def test_the_check_names_images_without_a_partner(tiny_sd: Path, tmp_path: Path) -> None:
    pairs = draw_pairs(tmp_path / "pairs", sizes=[(64, 64)] * 3)
    (pairs / "rejected" / "001.png").unlink()
    config = dpo_config(tmp_path, tiny_sd, pairs)
    assert messages(config) == ["1 file is skipped (001.png: no image of this name in rejected/)."]
    shutil.rmtree(pairs / "rejected")
    [said] = messages(config)
    assert "contains no pair of images" in said
    assert "there is no folder rejected next to it" in said


def test_pairs_are_called_pairs(tiny_sd: Path, tmp_path: Path) -> None:
    """In the check, in the window's preview, and at the start of a run."""
    pairs = draw_pairs(tmp_path / "pairs", sizes=[(64, 64)] * 3)
    config = dpo_config(tmp_path, tiny_sd, pairs)
    preview = check(config).preview
    assert preview is not None
    assert (preview.num_images, preview.num_pairs) == (3, 3)
    assert any(line.startswith("3 pairs, ") for line in preview_lines(preview))
    datasets = build_datasets(dataset_settings(config))
    rows = plan_rows(datasets.training, datasets.plans, ImageVersions(datasets.training, 0, is_cached=True), epochs=1)
    assert "3 pairs" in describe_buckets(rows)[0]
    [started] = run(config).of(RunStarted)
    assert "\n3 pairs, " in words(started)
    assert describe_data(5, 1, 2) == "3 images and 2 pairs and 1 prompt"
    assert describe_data(0, 0) == "0 images"


def test_the_check_counts_pairs_that_are_left_out_of_a_file(tiny_sd: Path, tmp_path: Path) -> None:
    """The file is used, and ties are normal: nothing needs to be repaired."""
    pairs = draw_pairs(tmp_path / "pairs", sizes=[(64, 64)] * 3)
    rows = [f"chosen/00{n}.png,rejected/00{n}.png,{label},{1 - label:g}" for n, label in enumerate((1, 0, 0.5))]
    file = pairs / "votes.csv"
    file.write_text("\n".join(["image_0,image_1,label_0,label_1", *rows]) + "\n", encoding="utf-8")
    config = laid_over(dpo_config(tmp_path, tiny_sd, pairs), {"concepts": [{"path": str(file), "kind": "pairs"}]})
    [found] = [p for p in check(config).problems if "votes.csv" in p.message]
    assert found.message == "votes.csv: 1 pair is left out: no image is preferred (ties)."
    assert (found.severity, found.advice) == ("info", "")
    file.write_text(f"image_0,image_1,label_0,label_1\n{rows[2]}\nchosen/000.png,,1,0\n", encoding="utf-8")
    [error] = [p for p in check(config).errors if "votes.csv" in p.message]
    assert "contains no pair of images: votes.csv: 1 pair is left out: no image is preferred (ties); " in error.message


def test_the_plan_and_the_doctor_know_both_images(tiny_sd: Path, tmp_path: Path) -> None:
    pairs = draw_pairs(tmp_path / "pairs", sizes=[(64, 64)] * 2)
    config = dpo_config(tmp_path, tiny_sd, pairs)
    datasets = build_datasets(dataset_settings(config))
    rows = plan_rows(datasets.training, datasets.plans, ImageVersions(datasets.training, 0, is_cached=True), epochs=1)
    assert [Path(r.rejected_image).relative_to(pairs).as_posix() for r in rows] == [
        "rejected/000.png",
        "rejected/001.png",
    ]
    broken = pairs / "rejected" / "001.png"
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    report = examine(config)
    assert [f.files for f in report.findings if f.check == "unreadable"] == [(broken,)]
