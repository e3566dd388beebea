"""Layers of a start file that a run does not train: they act in the run as in the file, and are written again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from modules.adapters.stack import read_adapter
from modules.config.schema import Config
from modules.families.protocol import ModelFamily
from modules.formats.adapter_names import DOWN, UP
from tests.builders.adapter_files import merged, places, whole_lora
from tests.builders.configs import laid_over
from tests.builders.pipelines import load_tiny
from tests.builders.runs import assert_equal_tensors, run
from tests.builders.start_files import (
    FEED_FORWARD,
    UNET_ONLY,
    config_of_start,
    first_loss,
    is_text,
    norms_and_more,
    notes,
    result,
    starting,
    with_a_loha,
)
from trainer.events import ValidationFinished, WarningRaised


@pytest.fixture
def config(any_model: Path, images: Path, tmp_path: Path) -> Config:
    """A run of a tiny model of each family."""
    return config_of_start(any_model, images, tmp_path)


@pytest.mark.full
@pytest.mark.one_family
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
    assert "They are kept: they act in the run" in note


@pytest.mark.full
def test_the_last_text_layer_and_the_projection_are_kept(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", dtype=torch.bfloat16)
    # The layers that clip skip, or SDXL's first encoder, leaves out; the projection has no name that all programs know.
    skipping = laid_over(config, {"model": {"family": {"clip_skip": 2 if "xl" not in any_model.name else 1}}})
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


@pytest.mark.full
@pytest.mark.one_family
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


@pytest.mark.full
@pytest.mark.one_family
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


@pytest.mark.full
@pytest.mark.one_family
def test_several_ranks_in_one_file(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(
        any_model,
        tmp_path / "whole.safetensors",
        rank_of=lambda place: 2 + len(place[1]) % 4,
        takes=lambda place: "attn1" not in place[1],
        alpha=None,
    )
    ran = run(starting(config, file, adapter={"alpha": 2.0}))
    before, after = load_file(file), result(ran)
    with safe_open(ran.finished.model_path, "pt") as stored:
        facts = stored.metadata()
    plain = laid_over(config, {"model": {"base_model": str(merged(any_model, tmp_path / "merged", file))}})
    assert ran.of(ValidationFinished)[0].loss == pytest.approx(first_loss(plain), rel=1e-5)
    ranks = {name: tensor.shape[0] for name, tensor in after.items() if name.endswith("down.weight")}
    assert all(rank == (before[name].shape[0] if name in before else 4) for name, rank in ranks.items())
    assert len(set(ranks.values())) == 4
    largest = [name.removesuffix("lora_down.weight") for name, rank in ranks.items() if rank == 5]
    [(alpha, _)] = Counter(float(after[f"{name}alpha"]) for name in largest).most_common(1)
    assert (facts["ss_network_dim"], facts["ss_network_alpha"]) == ("5", f"{alpha:g}")


@pytest.mark.full
@pytest.mark.one_family
def test_a_tucker_lora_becomes_a_plain_one(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", tucker=True)
    ran = run(starting(config, file, adapter={"layers": "all"}))
    after = result(ran)
    plain = laid_over(config, {"model": {"base_model": str(merged(any_model, tmp_path / "merged", file))}})
    assert ran.of(ValidationFinished)[0].loss == pytest.approx(first_loss(plain), rel=1e-5)
    assert any("lora_mid" in name for name in load_file(file))
    assert not any("lora_mid" in name for name in after)
    assert any("Tucker" in w.message for w in ran.of(WarningRaised))


@pytest.mark.full
@pytest.mark.parametrize("choice", ["keep", "leave_out"])
@pytest.mark.one_family
def test_a_layer_of_another_kind_is_kept_instead_of_trained(
    config: Config, any_model: Path, tmp_path: Path, choice: str
) -> None:
    file = whole_lora(
        any_model, tmp_path / "mixed.safetensors", takes=lambda place: place != FEED_FORWARD, extra=with_a_loha
    )
    ran = run(starting(config, file, adapter={"other_layers": choice}))
    before, after = load_file(file), result(ran)
    loha = {name: tensor for name, tensor in before.items() if ".hada_" in name}
    [layer] = {name.split(".")[0] for name in loha}
    own = {name: tensor for name, tensor in after.items() if name.split(".")[0] == layer}
    if choice == "keep":  # a file holds one change of a weight
        assert_equal_tensors(own, loha)
        change = (loha[f"{layer}.hada_w1_a"] @ loha[f"{layer}.hada_w1_b"]) * (
            loha[f"{layer}.hada_w2_a"] @ loha[f"{layer}.hada_w2_b"]
        )
        model = merged(any_model, tmp_path / "merged", file, [(FEED_FORWARD, "weight", change.double())])
        plain = laid_over(config, {"model": {"base_model": str(model)}})
        assert ran.of(ValidationFinished)[0].loss == pytest.approx(first_loss(plain), rel=1e-5)
    else:
        assert {name.partition(".")[2] for name in own} == {"lora_down.weight", "lora_up.weight", "alpha"}


@pytest.mark.full
@pytest.mark.one_family
def test_the_diffusers_form_has_all_that_it_can_hold(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", extra=norms_and_more, tucker=True)
    first = starting(laid_over(config, {"output": {"format": "diffusers"}}), file, **UNET_ONLY)
    ran = run(first)
    [note] = notes(ran)
    assert "The diffusers format cannot hold" in note
    assert not any("norm" in name.split(".")[-1] or "bundle" in name for name in result(ran))
    # Started from again, it is the same LoRA: with the kept text layers, and Tucker's core in its matrices.
    copy = tmp_path / "diffusers.safetensors"
    copy.write_bytes(Path(ran.finished.model_path).read_bytes())
    again = first_loss(starting(config, copy, **UNET_ONLY))
    assert again == pytest.approx(ran.of(ValidationFinished)[-1].loss, rel=1e-4) or "norm" in note
    kept = read_adapter(copy, load_tiny(any_model).lora_naming, modules_of(load_tiny(any_model))).layers
    before = read_adapter(file, load_tiny(any_model).lora_naming, modules_of(load_tiny(any_model))).layers
    text = {(k.part, k.path): k for k in kept if k.part != "unet"}
    for layer in (k for k in before if k.part != "unet"):
        down, up = (text[layer.part, layer.path].factors[n] for n in (DOWN, UP))
        scale = text[layer.part, layer.path].scale
        torch.testing.assert_close(
            scale * up @ down, layer.scale * layer.factors[UP] @ layer.factors[DOWN], rtol=1e-5, atol=1e-7
        )


def modules_of(family: ModelFamily) -> dict[str, nn.Module]:
    return {name: part.module for name, part in family.parts.items()}


def text_entries(config: Config) -> set[str]:
    return {p.stem for p in (Path(config.general.cache_dir) / "text").rglob("*.safetensors")}


@pytest.mark.full
@pytest.mark.one_family
def test_another_start_file_has_other_cached_text_states(config: Config, any_model: Path, tmp_path: Path) -> None:
    one = whole_lora(any_model, tmp_path / "one.safetensors")
    other = whole_lora(any_model, tmp_path / "other.safetensors", rank_of=lambda place: 2)
    entries = []
    for file in (one, other, one):
        run(starting(config, file, **UNET_ONLY))
        entries.append(text_entries(config))
    run(starting(config, one, adapter={"other_layers": "leave_out"}, **UNET_ONLY))
    left_out = text_entries(config)
    assert len(entries[1]) == 2 * len(entries[0])
    assert entries[2] == entries[1]
    assert len(left_out) == 3 * len(entries[0])
    run(laid_over(config, UNET_ONLY))  # without any adapter on the encoders the states are the same
    assert text_entries(config) == left_out
