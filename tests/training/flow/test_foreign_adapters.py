"""Adapter files of ai-toolkit and musubi-tuner on the tiny model of every flow family: merged, converted, continued.

ai-toolkit writes the denoiser's names behind `diffusion_model.`, with factors in PEFT's or in kohya's names, and LoKr;
musubi-tuner writes `lora_unet_` and underscores.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.config.codec import decode, encode
from modules.families.kinds.identify import identify
from modules.families.protocol import ModelFamily
from tests.builders.configs import laid_over, small_config
from tests.builders.flow_models import FlowModel
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny
from tests.builders.runs import run
from trainer.__main__ import main
from trainer.events import StepFinished
from trainer.preflight import check

RANK, ALPHA = 2, 3.0
WHOLE = float("inf")
"""ai-toolkit's alpha of a LoKr of whole matrices, which has no scale: 9,999,999,999 in float16."""
Tensors = dict[str, torch.Tensor]
Changes = Mapping[str, torch.Tensor]


def layers_of(family: ModelFamily) -> dict[str, tuple[int, int]]:
    """The layers of the blocks by their path, which all these programs train, and the shapes of their weights."""
    part = family.spec.denoiser
    targets = family.lora_naming.targets
    # Which block is the last one, whose layers may differ, the file of a model of another size does not tell.
    swapped = {piece.path for matrix in targets.matrices if matrix.swapped for piece in matrix.pieces}
    chosen = [t for t in targets.all if t.part == part.name and part.model.layers["blocks"].takes(t.path)]
    blocks = {t.path: t.weight for t in chosen if t.path not in swapped}
    assert len(blocks) > 4
    return {path: (shape[0], shape[1]) for path, shape in blocks.items()}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * 0.1


def lora(layers: Mapping[str, tuple[int, int]], program: str) -> tuple[Tensors, Changes]:
    tensors: Tensors = {}
    changes: dict[str, torch.Tensor] = {}
    has_alpha = program != "ai-toolkit"
    down_name, up_name = ("lora_down", "lora_up") if has_alpha else ("lora_A", "lora_B")
    for path, (rows, columns) in layers.items():
        name = f"lora_unet_{path.replace('.', '_')}" if program == "musubi-tuner" else f"diffusion_model.{path}"
        down, up = random(RANK, columns), random(rows, RANK)
        tensors |= {f"{name}.{down_name}.weight": down, f"{name}.{up_name}.weight": up}
        if has_alpha:
            tensors[f"{name}.alpha"] = torch.tensor(ALPHA)
        changes[path] = up @ down * (ALPHA / RANK if has_alpha else 1.0)
    return tensors, changes


def lokr(layers: Mapping[str, tuple[int, int]], *, is_whole: bool) -> tuple[Tensors, Changes]:
    tensors: Tensors = {}
    changes: dict[str, torch.Tensor] = {}
    for path, (rows, columns) in layers.items():
        name, height = f"diffusion_model.{path}", next(n for n in (2, 5, 1) if rows % n == 0)
        width = next(n for n in (2, 5, 1) if columns % n == 0)
        first, a, b = random(height, width), random(rows // height, RANK), random(RANK, columns // width)
        tensors[f"{name}.lokr_w1"] = first
        if is_whole:
            tensors |= {f"{name}.lokr_w2": a @ b, f"{name}.alpha": torch.tensor(WHOLE)}
        else:
            tensors |= {f"{name}.lokr_w2_a": a, f"{name}.lokr_w2_b": b, f"{name}.alpha": torch.tensor(ALPHA)}
        changes[path] = torch.kron(first, a @ b) * (1.0 if is_whole else ALPHA / RANK)
    return tensors, changes


@pytest.fixture(scope="module")
def written(model: Path, tiny: FlowModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Changes]]:
    """The files by what they are, and what each adds to the weights."""
    family: ModelFamily = load_tiny(model, tiny.family)
    layers, folder = layers_of(family), tmp_path_factory.mktemp("adapters")
    made = {program: lora(layers, program) for program in ("ai-toolkit", "ai-toolkit with alpha", "musubi-tuner")}
    made |= {"LoKr": lokr(layers, is_whole=False), "whole LoKr": lokr(layers, is_whole=True)}
    files = {}
    for kind, (tensors, changes) in made.items():
        # Without it the layers of FLUX.1 and Chroma are the same.
        metadata = {"format": "pt", "ss_base_model_version": family.lora_naming.base_version}
        save_file(tensors, folder / f"{kind}.safetensors", metadata)
        files[kind] = (folder / f"{kind}.safetensors", changes)
    return files


def merged(model: Path, family: ModelFamily, file: Path, folder: Path) -> Tensors:
    """What merging a file adds to the denoiser of a model."""
    assert main(["lora-merge", str(model), str(folder), str(file)]) == 0
    part = family.spec.denoiser.name
    after = load_file(next((folder / part).glob("*.safetensors")))
    before = load_file(next((model / part).glob("*.safetensors")))
    return {n.removesuffix(".weight"): after[n].float() - before[n].float() for n in before if n.endswith(".weight")}


def assert_adds(added: Tensors, changes: Changes) -> None:
    for path, change in changes.items():
        torch.testing.assert_close(added[path].reshape(change.shape), change, rtol=1e-3, atol=2e-5)
    assert all(not change.any() for path, change in added.items() if path not in changes)


KINDS = ("ai-toolkit", "ai-toolkit with alpha", "musubi-tuner", "LoKr", "whole LoKr")


@pytest.mark.daily(13)
@pytest.mark.parametrize("kind", KINDS)
def test_each_is_recognized_and_merged(
    kind: str, written: Any, model: Path, family: ModelFamily, tiny: FlowModel, tmp_path: Path
) -> None:
    file, changes = written[kind]
    found = identify(file)
    assert (found.kind, found.family, found.facts["adapter"]) == (
        "lora",
        tiny.family,
        "LoKr" if "LoKr" in kind else "LoRA",
    )
    assert_adds(merged(model, family, file, tmp_path / "merged"), changes)


@pytest.mark.daily(13)
@pytest.mark.parametrize("kind", KINDS)
def test_each_is_converted_without_loss(
    kind: str, written: Any, model: Path, family: ModelFamily, tmp_path: Path
) -> None:
    file, changes = written[kind]
    form = "kohya" if "LoKr" in kind else "peft"
    assert main(["convert", str(file), str(tmp_path / "other.safetensors"), "--to", form]) == 0
    assert_adds(merged(model, family, tmp_path / "other.safetensors", tmp_path / "merged"), changes)


@pytest.mark.daily(1)
def test_training_continues_from_each(written: Any, model: Path, family: ModelFamily, tmp_path: Path) -> None:
    """The loss of the first step is that of the same change in another file, and not that of the plain model."""
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2, captions=["a disc"])
    base = small_config(tmp_path, model=model, images=images)

    def first_loss(adapter: dict[str, Any]) -> float:
        tree = encode(laid_over(base, {"training": {"epochs": 1, "batch_size": 2}}))
        config = decode({**tree, "adapter": {"layers": "blocks", **adapter}}).config
        assert not check(config).errors
        ran = run(config)
        assert ran.finished.outcome == "finished"
        return ran.of(StepFinished)[0].loss

    plain = first_loss({})
    with_alpha = first_loss({"start_from": str(written["ai-toolkit with alpha"][0])})
    assert with_alpha != pytest.approx(plain, rel=1e-4)
    assert first_loss({"start_from": str(written["musubi-tuner"][0])}) == pytest.approx(with_alpha, rel=1e-6)
    assert first_loss({"name": "lokr", "factor": 2, "start_from": str(written["LoKr"][0])}) != pytest.approx(
        plain, rel=1e-4
    )
