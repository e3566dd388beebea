"""LoRA files of Z-Image in the names of ComfyUI's checkpoint, which has q, k and v in one matrix."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline
from safetensors.torch import save_file

from modules.config.codec import decode, encode
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.protocol import ModelFamily
from tests.builders.configs import laid_over, small_config
from tests.builders.pipelines import family_fixture
from tests.builders.runs import run
from tests.builders.z_image import tiny_transformer
from tests.training.flow.test_foreign_adapters import ALPHA, RANK, assert_adds, merged, random
from trainer.__main__ import main
from trainer.events import StepFinished
from trainer.preflight import check

LAYERS = ("layers.0", "layers.1")
RENAMED = {
    "attention.out": "attention.to_out.0",
    "feed_forward.w1": "feed_forward.w1",
    "adaLN_modulation.0": "adaLN_modulation.0",
}
ENDS = {
    "x_embedder": "all_x_embedder.2-1",
    "final_layer.linear": "all_final_layer.2-1.linear",
    "cap_embedder.1": "cap_embedder.1",
}
Changes = dict[str, torch.Tensor]


family = family_fixture("tiny_z_image", "z_image")


def fused_lora(family: ModelFamily, path: Path, *, start: str) -> Changes:
    """Write a LoRA in ComfyUI's names, and return what it adds to each weight in diffusers' names."""
    shapes = {t.path: t.weight for t in family.lora_naming.targets.all}
    tensors: dict[str, torch.Tensor] = {}
    changes: Changes = {}

    def add(name: str, rows: int, columns: int) -> torch.Tensor:
        down, up = random(RANK, columns), random(rows, RANK)
        named = f"{start}{name.replace('.', '_') if start.endswith('_') else name}"
        factors = {"lora_down.weight": down, "lora_up.weight": up, "alpha": torch.tensor(ALPHA)}
        tensors.update({f"{named}.{factor}": tensor for factor, tensor in factors.items()})
        return up @ down * (ALPHA / RANK)

    for block in LAYERS:
        rows, columns = shapes[f"{block}.attention.to_q"]
        whole = add(f"{block}.attention.qkv", 3 * rows, columns)
        changes |= {f"{block}.attention.to_{x}": part for x, part in zip("qkv", whole.chunk(3), strict=True)}
        for theirs, ours in RENAMED.items():
            changes[f"{block}.{ours}"] = add(f"{block}.{theirs}", *shapes[f"{block}.{ours}"])
    for theirs, ours in ENDS.items():
        changes[ours] = add(theirs, *shapes[ours])
    # The published size is known from the names alone.
    save_file(tensors, path, {CONFIGS_KEY: family.lora_naming.own_configs})
    return changes


@pytest.mark.parametrize("start", ["diffusion_model.", "lora_unet_"])
def test_a_fused_lora_is_merged_and_converted(
    start: str, family: ModelFamily, tiny_z_image: Path, tmp_path: Path
) -> None:
    file = tmp_path / "fused.safetensors"
    changes = fused_lora(family, file, start=start)
    found = identify(file)
    assert (found.kind, found.model, found.facts["names"]) == ("lora", "z_image", "comfyui")
    assert_adds(merged(tiny_z_image, family, file, tmp_path / "merged"), changes)
    for form in ("kohya", "comfyui", "peft"):
        other = tmp_path / f"{form}.safetensors"
        assert main(["convert", str(file), str(other), "--to", form]) == 0
        assert identify(other).facts["names"] == "diffusers"
        assert_adds(merged(tiny_z_image, family, other, tmp_path / f"merged {form}"), changes)


@pytest.mark.full
def test_training_continues_from_a_fused_lora(
    family: ModelFamily, tiny_z_image: Path, images: Path, tmp_path: Path
) -> None:
    file, split = tmp_path / "fused.safetensors", tmp_path / "split.safetensors"
    fused_lora(family, file, start="diffusion_model.")
    assert main(["convert", str(file), str(split), "--to", "peft"]) == 0
    base = small_config(tmp_path, model=tiny_z_image, images=images)

    def first_loss(start: Path | None) -> float:
        tree = encode(laid_over(base, {"training": {"epochs": 1, "batch_size": 2}}))
        adapter = {"layers": "all", "start_from": "" if start is None else str(start)}
        config = decode({**tree, "adapter": adapter}).config
        assert not check(config).errors
        return run(config).of(StepFinished)[0].loss

    assert first_loss(file) == pytest.approx(first_loss(split), rel=1e-6)
    assert first_loss(file) != pytest.approx(first_loss(None), rel=1e-4)


def test_a_lokr_on_the_fused_matrix_is_refused(family: ModelFamily, tiny_z_image: Path, tmp_path: Path) -> None:
    file = tmp_path / "lokr.safetensors"
    rows, columns = next(t.weight for t in family.lora_naming.targets.all if t.path.endswith("to_q"))
    name = "diffusion_model.layers.0.attention.qkv"
    factors = {"lokr_w1": random(3, 1), "lokr_w2": random(rows, columns), "alpha": torch.tensor(1.0)}
    save_file({f"{name}.{factor}": tensor for factor, tensor in factors.items()}, file)
    config = decode({"model": {"family": "z_image", "base_model": str(tiny_z_image)}}).config
    problems = check(laid_over(config, {"adapter": {"start_from": str(file)}})).problems
    assert any(
        "which this model has as several layers, by LoKr, which cannot be divided" in p.message for p in problems
    )


def loaded_by_diffusers(file: Path) -> set[str]:
    pipe = ZImagePipeline(FlowMatchEulerDiscreteScheduler(), None, None, None, tiny_transformer())
    pipe.load_lora_weights(file.parent, weight_name=file.name)
    names = (name for name, _ in pipe.transformer.named_parameters())
    return {name.partition(".lora_A")[0] for name in names if "lora_A" in name}


def test_diffusers_loads_of_each_form_what_is_answered(family: ModelFamily, tmp_path: Path) -> None:
    """The answers for ComfyUI, at the published size, are in tests/unit/test_program_table.py."""
    native = tmp_path / "native.safetensors"
    changes = fused_lora(family, native, start="diffusion_model.")
    answers = {}
    for form in ("native", "kohya", "comfyui", "peft"):
        file = tmp_path / f"{form}.safetensors"
        if form != "native":
            assert main(["convert", str(native), str(file), "--to", form]) == 0
        answers[form] = next(x.loads for x in who_loads_file(file)[1] if x.program == "diffusers")
        # Of native names it loads `attention.out`, too, if the factors have kohya's names: that is not counted on.
        assert (loaded_by_diffusers(file) >= changes.keys()) is (answers[form] == "all")
    assert answers == {"native": "part", "kohya": "all", "comfyui": "all", "peft": "all"}
