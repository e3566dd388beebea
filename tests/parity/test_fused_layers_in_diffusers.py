"""LoRA files with q, k and v in one matrix: diffusers reads the same change as from its own names, at real widths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import FluxPipeline, HunyuanVideoPipeline
from safetensors.torch import save_file

from modules.families.chroma import files as chroma
from modules.families.chroma.spec import FROZEN
from modules.families.flux import files as flux
from modules.families.hunyuan_video import files as hunyuan_video
from modules.families.parts.linear_layers import original_targets
from modules.families.registry import published_model
from modules.formats.adapter_layers import AdapterLayer, lora_layer
from modules.formats.adapter_names import DOWN, UP
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.fused_changes import divide, join
from modules.formats.lora_files import to_kohya, to_peft, with_letters

MODELS = {
    "flux_dev": flux.transformer_layers,
    "chroma1": chroma.transformer_layers,
    "hunyuan_video": hunyuan_video.linear_layers,
}


@pytest.fixture(scope="module", params=MODELS)
def targets(request: pytest.FixtureRequest) -> AdapterTargets:
    """The layers that adapters of a model can train, with the published width, and a block of each kind."""
    config = published_model(request.param).shipped_configs()["transformer"]
    layers = MODELS[request.param]({**config, "num_layers": 1, "num_single_layers": 1, "num_refiner_layers": 1})
    trained = [layer for layer in layers if not layer.path.startswith(FROZEN)]
    return AdapterTargets.of(*original_targets(trained))


@pytest.fixture(scope="module")
def layers(targets: AdapterTargets) -> list[AdapterLayer]:
    """A LoRA on every layer, with an alpha of its own; its ranks differ inside of a matrix."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for number, target in enumerate(targets.all):
        rank = 1 + number % 2
        down, up = (
            torch.randn(*shape, generator=generator) for shape in ((rank, target.weight[1]), (target.weight[0], rank))
        )
        made.append(lora_layer(target.part, target.path, down, up, 1.0 + number % 3))
    return made


def applied(down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The change of a weight, applied to some inputs."""
    return up @ (down @ torch.randn(down.shape[1], 3, generator=torch.Generator().manual_seed(1)))


def test_diffusers_reads_joined_layers_as_the_single_ones(
    targets: AdapterTargets, layers: list[AdapterLayer], tmp_path: Path
) -> None:
    joined, metadata = join(layers, targets.matrices)
    names = {(t.part, t.path): t.kohya_name for t in (*targets.all, *targets.matrices)}
    kohya = to_kohya(joined, lambda part, path: names[part, path])
    assert all(name.startswith("lora_unet_") for name in kohya)
    if any(layer.path.startswith("context_embedder.token_refiner.") for layer in layers):
        assert_diffusers_reads_comfyuis_form(targets, layers)
        return
    save_file(kohya, tmp_path / "kohya.safetensors", metadata)
    read = FluxPipeline.lora_state_dict(tmp_path / "kohya.safetensors")
    outside = {name.partition(".lora_")[0] for name in read if not name.startswith("transformer.")}  # it ignores them
    assert outside == {t.path for t in targets.all if "blocks" not in t.path}
    theirs = {name: tensor for name, tensor in read.items() if name.startswith("transformer.")}
    assert_same_changes(theirs, layers, only="blocks")


def assert_same_changes(theirs: Mapping[str, torch.Tensor], layers: list[AdapterLayer], *, only: str = "") -> None:
    """The changes that diffusers reads are those of the single layers in its own names, of some by part of a name."""
    plain, _ = to_peft(layers, lambda part, path: f"{part}.{path}", folds_alpha=True)
    ours = {name: tensor.make() for name, tensor in plain.items() if only in name}
    assert theirs.keys() == ours.keys()
    for name in (n for n in ours if n.endswith("lora_A.weight")):
        other = name.replace("lora_A", "lora_B")
        torch.testing.assert_close(
            applied(theirs[name], theirs[other]), applied(ours[name], ours[other]), rtol=1e-4, atol=1e-2
        )


def assert_diffusers_reads_comfyuis_form(targets: AdapterTargets, layers: list[AdapterLayer]) -> None:
    """HunyuanVideo's: of ComfyUI's names it knows those of the blocks, without alphas."""
    names = {(t.part, t.path): t.paths["original"] for t in (*targets.all, *targets.matrices) if "original" in t.paths}
    plain = [replace(layer, alpha=None) for layer in layers]
    of_blocks = [layer for layer in plain if layer.path.startswith(("transformer_blocks", "single_transformer_blocks"))]

    def in_diffusers(layers: list[AdapterLayer], *, has_alphas: bool = False) -> dict[str, torch.Tensor]:
        joined, _ = join(layers, targets.matrices)
        tensors = with_letters(to_kohya(joined, lambda part, path: f"diffusion_model.{names[part, path]}"))
        written = {n: t for n, t in tensors.items() if has_alphas or not n.endswith(".alpha")}
        read: dict[str, torch.Tensor] = HunyuanVideoPipeline.lora_state_dict(written)
        return read

    assert_same_changes(in_diffusers(of_blocks), of_blocks)
    for faulty, options in ((plain, {}), (of_blocks, {"has_alphas": True})):
        with pytest.raises((RuntimeError, ValueError)):
            in_diffusers(faulty, **options)


def test_joined_layers_are_divided_into_the_same_ones(targets: AdapterTargets, layers: list[AdapterLayer]) -> None:
    from modules.formats.fused_layers import ranks_in

    joined, metadata = join(layers, targets.matrices)
    matrices, ranks = {t.path: t for t in targets.matrices}, ranks_in(metadata)
    divided = [d for j in joined if j.path in matrices for d in divide(j, matrices[j.path], ranks.get(j.path, ()))]
    before = {layer.path: layer for layer in layers}
    assert len(divided) == sum(len(t.pieces) for t in targets.matrices)
    for layer in divided:
        assert torch.equal(layer.factors[DOWN], before[layer.path].factors[DOWN])
        ours, expected = layer.factors[UP] * layer.scale, before[layer.path].factors[UP] * before[layer.path].scale
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
    without = [d for j in joined if j.path in matrices for d in divide(j, matrices[j.path])]  # of another program
    for layer in without:
        own = before[layer.path]
        theirs, ours = (applied(x.factors[DOWN], x.factors[UP] * x.scale) for x in (layer, own))
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-2)
