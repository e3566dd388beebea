"""Layers of a start file that a run does not train: they act in the run as in the file, and are written again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from modules.config.schema import Config
from modules.families.protocol import ModelFamily
from tests.builders.adapter_files import Filled, merged, places, whole_lora
from tests.builders.configs import laid_over, small_config
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.events import RunFailed, StepFinished, ValidationFinished, WarningRaised
from trainer.preflight import check

TEXT = ("text_encoder", "text_encoder_2")
UNET_ONLY: dict[str, Any] = {"parts": {name: {"train": False} for name in TEXT}}


@pytest.fixture
def config(any_model: Path, images: Path, tmp_path: Path) -> Config:
    """A run of a tiny model of each family that validates before its first step and writes float32."""
    return laid_over(
        small_config(tmp_path, model=any_model, images=images),
        {
            "training": {"epochs": 1, "learning_rate": 0.02},
            "adapter": {"rank": 4, "alpha": 4.0},
            "validation": {"every": {"n": 1, "unit": "epoch"}},
            "concepts": [{"path": str(images)}, {"path": str(images), "kind": "validation"}],
            "output": {"dtype": "float32"},
        },
    )


def starting(config: Config, file: Path, **changes: Any) -> Config:
    adapter = {"start_from": str(file), **changes.pop("adapter", {})}
    return laid_over(config, {"adapter": adapter, **changes})


def first_loss(config: Config) -> float:
    ran = run(config)
    assert ran.finished.outcome == "finished"
    loss = ran.of(ValidationFinished)[0].loss
    assert loss is not None
    return loss


def result(ran: Ran) -> dict[str, torch.Tensor]:
    """The tensors of a run's result, read now: another run of the same config replaces it."""
    return {name: tensor.clone() for name, tensor in load_file(ran.finished.model_path).items()}


def notes(ran: Ran) -> list[str]:
    return [w.message for w in ran.of(WarningRaised) if "does not train everything" in w.message]


def is_text(name: str) -> bool:
    return name.startswith("lora_te")


def test_a_run_of_the_unet_keeps_the_text_layers(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors")
    ran = run(starting(config, file, **UNET_ONLY))
    before, after = load_file(file), result(ran)
    # In the run they act as in every program that loads the file: as if it were in the model's weights.
    plain = laid_over(config, {"model": {"base_model": str(merged(any_model, tmp_path / "merged", file))}, **UNET_ONLY})
    begun = ran.of(ValidationFinished)[0].loss
    assert begun == pytest.approx(first_loss(plain), rel=1e-5)
    assert begun != pytest.approx(first_loss(laid_over(config, UNET_ONLY)), rel=1e-3)
    # They are written again, bit for bit.
    assert before.keys() == after.keys()
    assert_equal_tensors({n: after[n] for n in after if is_text(n)}, {n: before[n] for n in before if is_text(n)})
    assert any(name.endswith("lora_up.weight") and not before[name].equal(after[name]) for name in before)
    # Said once, with their number.
    [note] = notes(ran)
    assert "They are kept as they are" in note


def test_the_last_text_layer_and_the_projection_are_kept(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", dtype=torch.bfloat16)
    # The layers that clip skip, or SDXL's first encoder, leaves out; the projection has no name that all programs know.
    skipping = laid_over(config, {"model": {"clip_skip": 2 if "xl" not in any_model.name else 1}})
    skipping = laid_over(skipping, {"output": {"dtype": "bfloat16"}, "adapter": {"layers": "all"}})
    ran = run(starting(skipping, file))
    before, after = load_file(file), result(ran)
    assert before.keys() == after.keys()
    last = {name for name in before if name.startswith(("lora_te_", "lora_te1_")) and "encoder_layers_2_" in name}
    last |= {name for name in before if "text_projection" in name}
    assert any("text_projection" in name for name in last) == ("xl" in any_model.name)
    assert_equal_tensors({n: after[n] for n in last}, {n: before[n] for n in last})
    assert all(any(p in n for n in before if not before[n].equal(after[n])) for p in ("lora_te", "lora_unet"))
    model = str(merged(any_model, tmp_path / "merged", file))
    begun = first_loss(laid_over(skipping, {"model": {"base_model": model}}))
    assert ran.of(ValidationFinished)[0].loss == pytest.approx(begun, rel=1e-5)


def test_they_can_be_left_out(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors")
    unet = tmp_path / "unet.safetensors"
    save_file({n: t for n, t in load_file(file).items() if not is_text(n)}, unet)
    ran = run(starting(config, file, adapter={"other_layers": "leave_out", "layers": "all"}, **UNET_ONLY))
    assert not any(is_text(name) for name in result(ran))
    plain = laid_over(config, {"model": {"base_model": str(merged(any_model, tmp_path / "merged", unet))}, **UNET_ONLY})
    assert ran.of(ValidationFinished)[0].loss == pytest.approx(first_loss(plain), rel=1e-5)
    [note] = notes(ran)
    assert "left out" in note


@pytest.mark.parametrize("change", ["deleted", "another"])
def test_a_resumed_run_needs_the_file_no_more(config: Config, any_model: Path, tmp_path: Path, change: str) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", rank_of=lambda place: 3)
    two = starting(config, file, **UNET_ONLY, backup={"every": {"n": 1, "unit": "step"}, "keep": 0})
    straight = run(two)
    trained = result(straight)
    steps = straight.of(StepFinished)
    if change == "deleted":
        file.unlink()
    else:
        whole_lora(any_model, file, rank_of=lambda place: 5)
    backup = Path(straight.finished.backup_path).parent / "step-00000001"
    assert not check(two, resume_from=backup).errors
    resumed = run(two, resume_from=backup)
    assert_equal_tensors(resumed.weights, straight.weights)
    assert [s.loss for s in resumed.of(StepFinished)] == [s.loss for s in steps[1:]]
    assert_equal_tensors(result(resumed), trained)
    assert not notes(resumed)


def norms_and_more(family: ModelFamily, filled: Filled) -> Mapping[str, torch.Tensor]:
    """What LyCORIS also writes: norms, biases, a LoHa layer in the same file, and a bundled embedding."""
    tensors: dict[str, torch.Tensor] = {}
    for part, path in places(family, nn.LayerNorm, nn.GroupNorm):
        if part != "unet":
            continue
        width = family.parts[part].module.get_submodule(path).weight.shape[0]  # type: ignore[union-attr]
        name = family.lora_naming.kohya_name(part, path)
        tensors |= {f"{name}.w_norm": filled(width), f"{name}.b_norm": filled(width)}
    tensors["bundle_emb.disc.string_to_param.*"] = filled(2, 24)
    return tensors


def test_norms_and_embeddings_are_kept(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", extra=norms_and_more)
    tensors = load_file(file)
    family = load_tiny(any_model)
    changes = [
        (place, which, tensors[f"{family.lora_naming.kohya_name(*place)}.{factor}"].double())
        for place in places(family, nn.LayerNorm, nn.GroupNorm)
        if place[0] == "unet"
        for which, factor in (("weight", "w_norm"), ("bias", "b_norm"))
    ]
    ran = run(starting(config, file))
    after = result(ran)
    plain = laid_over(config, {"model": {"base_model": str(merged(any_model, tmp_path / "merged", file, changes))}})
    assert ran.of(ValidationFinished)[0].loss == pytest.approx(first_loss(plain), rel=1e-5)
    assert after.keys() == tensors.keys()
    kept = [name for name in tensors if "norm" in name.split(".")[-1] or name.startswith("bundle_emb")]
    assert kept
    assert_equal_tensors({n: after[n] for n in kept}, {n: tensors[n] for n in kept})
    [note] = notes(ran)
    assert "1 tensor of no layer (bundle_emb.disc" in note


def test_several_ranks_in_one_file(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(
        any_model,
        tmp_path / "whole.safetensors",
        rank_of=lambda place: 2 + len(place[1]) % 4,
        takes=lambda place: "attn1" not in place[1],
        alpha=None,
    )
    ran = run(starting(config, file))
    before, after = load_file(file), result(ran)
    plain = laid_over(config, {"model": {"base_model": str(merged(any_model, tmp_path / "merged", file))}})
    assert ran.of(ValidationFinished)[0].loss == pytest.approx(first_loss(plain), rel=1e-5)
    ranks = {name: tensor.shape[0] for name, tensor in after.items() if name.endswith("down.weight")}
    assert all(rank == (before[name].shape[0] if name in before else 4) for name, rank in ranks.items())
    assert len(set(ranks.values())) == 4


def test_a_tucker_lora_becomes_a_plain_one(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", tucker=True)
    ran = run(starting(config, file, adapter={"layers": "all"}))
    after = result(ran)
    plain = laid_over(config, {"model": {"base_model": str(merged(any_model, tmp_path / "merged", file))}})
    assert ran.of(ValidationFinished)[0].loss == pytest.approx(first_loss(plain), rel=1e-5)
    assert any("lora_mid" in name for name in load_file(file))
    assert not any("lora_mid" in name for name in after)
    assert any("Tucker" in w.message for w in ran.of(WarningRaised))


def test_a_file_of_another_width_is_refused_with_true_advice(config: Config, tiny_sd2: Path, tmp_path: Path) -> None:
    file = whole_lora(tiny_sd2, tmp_path / "whole.safetensors")
    ending = run(starting(config, file)).ending
    assert isinstance(ending, RunFailed)
