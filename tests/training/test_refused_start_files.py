"""Start files that a run refuses, and preflight with the same words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.config.schema import Config
from modules.families.protocol import ModelFamily
from tests.builders.adapter_files import Filled, places, whole_lora
from tests.builders.configs import laid_over
from tests.builders.runs import run
from tests.builders.start_files import (
    FEED_FORWARD,
    UNET_ONLY,
    config_of_start,
    failure,
    infos,
    starting,
    with_a_loha,
)
from trainer.preflight import check


@pytest.fixture
def config(any_model: Path, images: Path, tmp_path: Path) -> Config:
    """A run of a tiny model of each family."""
    return config_of_start(any_model, images, tmp_path)


def test_a_file_of_another_width_is_refused(config: Config, any_model: Path, tiny_sd2: Path, tmp_path: Path) -> None:
    file = whole_lora(tiny_sd2, tmp_path / "whole.safetensors")
    message, advice = failure(starting(config, file))
    assert "model" in message
    assert advice.startswith("Choose a")


def test_the_model_of_a_foreign_file_is_named(config: Config, any_model: Path, tmp_path: Path) -> None:
    """In preflight and in the run, as `inspect` names it."""
    layers = [f"lora_unet_double_blocks_{n}_{name}" for n in range(3) for name in ("img_attn_proj", "txt_mlp_0")]
    tensors = {f"{layer}.lora_{side}.weight": torch.ones(2, 2) for layer in layers for side in ("down", "up")}
    save_file(tensors, tmp_path / "flux.safetensors")
    start = starting(config, tmp_path / "flux.safetensors")
    [error] = check(start).errors
    assert "A LoRA of rank 2 for FLUX.1 dev" in error.message
    assert "A LoRA of rank 2 for FLUX.1 dev" in failure(start)[0]


@pytest.mark.parametrize("num_more", [-1, 0, 1])
def test_preflight_refuses_a_file_of_a_bigger_model_as_the_run_does(
    config: Config, any_model: Path, tmp_path: Path, num_more: int
) -> None:
    """Layers that the model does not have are kept unless they are the most: then the file is of another model."""

    def deeper(family: ModelFamily, filled: Filled) -> Mapping[str, torch.Tensor]:
        found = [place for place in places(family) if "attn1" in place[1]]
        names = [f"lora_unet_mid_block_attentions_0_transformer_blocks_{50 + n}_attn1_to_q" for n in range(len(found))]
        names = [*names, "lora_unet_mid_block_attentions_0_transformer_blocks_99_attn1_to_q"][: len(found) + num_more]
        shapes = {"lora_down.weight": (4, 32), "lora_up.weight": (32, 4)}
        return {f"{name}.{factor}": filled(*shape) for name in names for factor, shape in shapes.items()}

    file = whole_lora(any_model, tmp_path / "big.safetensors", takes=lambda p: "attn1" in p[1], extra=deeper)
    start = starting(config, file)
    report = check(start)
    if num_more < 1:
        assert not report.errors
        assert "tensors of no layer" in infos(start)["adapter.other_layers"]
        return
    message, advice = failure(start)
    [error] = report.errors
    assert (error.path, error.advice) == ("adapter.start_from", advice)
    assert advice == "Choose a LoRA made for a model of this size."
    assert error.message.endswith(message.removeprefix(file.name))
    assert not [p for p in report.problems if p.path in ("adapter.other_layers", "adapter.rank")]


def test_no_note_stands_beside_an_error_about_the_file(
    config: Config, any_model: Path, tiny_sd: Path, tmp_path: Path
) -> None:
    text, width = ("lora_te1", 2048) if any_model == tiny_sd else ("lora_te", 768)  # of the other family
    tensors = {}
    for layer, inputs, outputs in (
        ("lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k", width, 640),
        ("lora_unet_down_blocks_1_attentions_0_proj_out", 640, 640),
        (f"{text}_text_model_encoder_layers_0_mlp_fc1", 768, 3072),
    ):
        tensors[f"{layer}.lora_down.weight"] = torch.ones(4, inputs)
        tensors[f"{layer}.lora_up.weight"] = torch.ones(outputs, 4)
    file = tmp_path / "other.safetensors"
    save_file(tensors, file)
    report = check(starting(config, file, adapter={"layers": "attention"}, **UNET_ONLY))
    assert [e.path for e in report.errors] == ["adapter.start_from"]
    assert not [p for p in report.problems if p.path in ("adapter.other_layers", "adapter.rank")]


@pytest.mark.daily(1)
def test_a_part_whose_layers_are_all_of_another_kind_is_named(config: Config, any_model: Path, tmp_path: Path) -> None:
    custom = {"layers": "custom", "custom_layers": FEED_FORWARD[1]}
    file = whole_lora(any_model, tmp_path / "mixed.safetensors", takes=lambda p: "attn1" in p[1], extra=with_a_loha)
    start = starting(config, file, adapter=custom, **UNET_ONLY)
    message, advice = failure(start)
    assert "has a change of another kind on each of its layers" in message
    assert '"Leave out" under Other layers' in advice
    assert run(laid_over(start, {"adapter": {"other_layers": "leave_out"}})).finished.outcome == "finished"


@pytest.mark.daily(1)
@pytest.mark.parametrize("any_model", ["tiny_sd"], indirect=True)
@pytest.mark.parametrize(
    ("kept", "lacks", "is_alone"),
    [
        ("lora_down.weight", "lora_up.weight", False),
        ("lora_down.weight", "lora_up.weight", True),
        ("dora_scale", "lora_down.weight", False),
        ("hada_w1_a", "hada_w1_b", False),
        ("hada_w1_a", "hada_w1_b", True),
        ("hada_w1_a hada_w1_b hada_w2_a hada_w2_b hada_t1", "hada_t2", False),
        ("lokr_w1 lokr_w2_a", "lokr_w2_b", False),
        ("lokr_t2", "lokr_w1", True),
    ],
)
def test_an_incomplete_file_is_named(
    config: Config, any_model: Path, tmp_path: Path, kept: str, lacks: str, is_alone: bool
) -> None:
    def broken(family: ModelFamily, filled: Filled) -> Mapping[str, torch.Tensor]:
        name = family.lora_naming.kohya_name(*FEED_FORWARD)
        return {f"{name}.{factor}": filled(*([2] * (4 if "_t" in factor else 2))) for factor in kept.split()}

    file = whole_lora(
        any_model, tmp_path / "broken.safetensors", takes=lambda p: not is_alone and "attn1" in p[1], extra=broken
    )
    start = starting(config, file)
    message, advice = failure(start)
    [error] = check(start).errors
    for told in (message, error.message):
        assert told.endswith(f"broken.safetensors is incomplete: {'.'.join(FEED_FORWARD)} has no {lacks}.")
    assert advice == error.advice == "Download it again."


@pytest.mark.daily(1)
@pytest.mark.parametrize("any_model", ["tiny_sd"], indirect=True)
@pytest.mark.parametrize("has_alpha", [False, True])
@pytest.mark.parametrize(
    ("factor", "shape", "damage"),
    [
        ("lora_down.weight", (), "its lora_down.weight is a single number instead of a matrix"),
        ("lora_down.weight", (0, 4), "its lora_down.weight has no rows"),
        ("hada_w1_b", (), "its hada_w1_b is a single number instead of a matrix"),
        ("lokr_w2_b", (0, 4), "its lokr_w2_b has no rows"),
    ],
)
def test_a_matrix_without_axes_or_rows_is_named(
    config: Config, any_model: Path, tmp_path: Path, factor: str, shape: tuple[int, ...], damage: str, has_alpha: bool
) -> None:
    def broken(family: ModelFamily, filled: Filled) -> Mapping[str, torch.Tensor]:
        name = family.lora_naming.kohya_name(*FEED_FORWARD)
        tensors = {f"{name}.{factor}": torch.ones(shape)}
        return tensors | ({f"{name}.alpha": torch.tensor(2.0)} if has_alpha else {})

    file = whole_lora(any_model, tmp_path / "broken.safetensors", takes=lambda p: "attn1" in p[1], extra=broken)
    start = starting(config, file)
    message, advice = failure(start)
    [error] = check(start).errors
    for sentence in (message, error.message):
        assert sentence.endswith(f"broken.safetensors is damaged at {'.'.join(FEED_FORWARD)}: {damage}.")
    assert advice == error.advice == "Download it again."


@pytest.mark.parametrize("end", ["lora_down.weight", "alpha"])
def test_a_file_with_nan_is_named(config: Config, any_model: Path, tmp_path: Path, end: str) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(end))
    save_file({**tensors, name: torch.full_like(tensors[name], float("nan"))}, file)
    message, advice = failure(starting(config, file))
    what = "is damaged at lora_" if end == "alpha" else "has NaN or infinite values"
    assert f"whole.safetensors {what}" in message
    assert advice.startswith("Choose another file")
