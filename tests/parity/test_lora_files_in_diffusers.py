"""Our LoRA files in stock diffusers: every layer is taken up, and the trainer's own sample comes out again."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import CLIPTokenizer

from modules.adapters.lora import LoraAdapter, LoraShape, attach_lora
from modules.adapters.targets import target_layers
from modules.config.schema import Config
from modules.config.sections.watching import SamplePrompt
from modules.data.dataset import Dataset
from modules.errors import DarkroomError
from modules.families.parts.clip_vocabulary import clip_merges, clip_vocabulary
from modules.families.sd.forward import StableDiffusion
from modules.families.sd.load import load
from modules.memory.placement import Placement
from modules.system.devices import CPU
from tests.builders.configs import laid_over
from trainer.export import LoraExporter
from trainer.painting import Painter
from trainer.precision import Precision
from trainer.standalone import put_lora_on

PROMPT = SamplePrompt(prompt="a red disc", width_px=64, height_px=64, seed=3, steps=4, guidance=3.0)
NOW = datetime(2026, 1, 2, 3, 4, 5)


@pytest.fixture(params=["attention_mlp", "all"])
def trained(tiny_sd: Path, request: pytest.FixtureRequest) -> tuple[StableDiffusion, list[LoraAdapter]]:
    """A model with LoRA layers that do something: alpha other than rank, B drawn instead of zero."""
    family = load(str(tiny_sd), dtypes={})
    adapters = []
    generator = torch.Generator().manual_seed(1)
    for name in ("unet", "text_encoder"):
        part = family.parts[name]
        targets = target_layers(
            part.module, part.spec.role, layers=request.param, custom_layers="", reaches=part.reaches
        )
        adapter = attach_lora(name, part.module, targets, LoraShape(4, 6.0, 0.0, torch.float32), seed=5)
        for key, parameter in adapter.parameters().items():
            if "lora_B" in key:
                parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
        adapters.append(adapter)
    return family, adapters


def exporter(family: StableDiffusion, adapters: list[LoraAdapter], **output: str) -> LoraExporter:
    config = laid_over(Config(), {"output": {"dtype": "float32", **output}, "adapter": {"rank": 4, "alpha": 6.0}})
    return LoraExporter(adapters, family.lora_naming, config, Dataset((), (), 1))


def weights(adapters: list[LoraAdapter]) -> dict[str, torch.Tensor]:
    return {k: v.detach() for a in adapters for k, v in a.parameters().items()}


def paint(family: StableDiffusion) -> np.ndarray:
    placement = Placement(
        {n: p.module for n, p in family.parts.items()},
        train_device=CPU,
        temp_device=CPU,
        needed_in=lambda phase: frozenset(family.parts),
    )
    [image] = Painter(family, placement, CPU, Precision("float32", CPU)).paint([PROMPT], on_step=lambda: None)
    placement.close()
    return np.asarray(image, dtype=int)


def paint_in_diffusers(model: Path, lora: Path | None) -> np.ndarray:
    pipe = StableDiffusionPipeline.from_pretrained(
        model,
        tokenizer=CLIPTokenizer(vocab=clip_vocabulary(), merges=clip_merges(), model_max_length=77),
        safety_checker=None,
        feature_extractor=None,
        local_files_only=True,
    )
    pipe.set_progress_bar_config(disable=True)
    if lora is not None:
        pipe.load_lora_weights(lora.parent, weight_name=lora.name)
    image = pipe(
        PROMPT.prompt,
        width=64,
        height=64,
        num_inference_steps=4,
        guidance_scale=3.0,
        generator=torch.Generator("cpu").manual_seed(3),
    ).images[0]
    return np.asarray(image, dtype=int)


@pytest.mark.parametrize("form", ["kohya", "diffusers"])
def test_stock_diffusers_paints_the_trainers_sample(
    trained: tuple[StableDiffusion, list[LoraAdapter]], tiny_sd: Path, tmp_path: Path, form: str
) -> None:
    family, adapters = trained
    path = tmp_path / "lora.safetensors"
    exporter(family, adapters, format=form).save(path, weights(adapters), now=NOW, step=3, epoch=1)
    ours, theirs = paint(family), paint_in_diffusers(tiny_sd, path)
    assert np.abs(ours - theirs).max() <= 1
    # And the file does something: without it the picture is another.
    assert np.abs(ours - paint_in_diffusers(tiny_sd, None)).max() > 10


def test_every_layer_has_alpha_and_a_name_the_consumers_know(
    trained: tuple[StableDiffusion, list[LoraAdapter]], tmp_path: Path
) -> None:
    family, adapters = trained
    path = tmp_path / "lora.safetensors"
    exporter(family, adapters).save(path, weights(adapters), now=NOW, step=3, epoch=1)
    tensors = load_file(path)
    layers = {k.split(".", 1)[0] for k in tensors}
    assert len(layers) == sum(len(list(a.layers())) for a in adapters)
    for layer in layers:
        assert layer.startswith(("lora_unet_", "lora_te_text_model_encoder_layers_"))
        assert tensors[f"{layer}.alpha"].shape == ()
        assert tensors[f"{layer}.alpha"].item() == 6.0


def test_metadata_is_what_other_programs_read(
    trained: tuple[StableDiffusion, list[LoraAdapter]], tmp_path: Path
) -> None:
    family, adapters = trained
    path = tmp_path / "my lora.safetensors"
    exporter(family, adapters).save(path, weights(adapters), now=NOW, step=3, epoch=1)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["modelspec.architecture"] == "stable-diffusion-v1/lora"
    assert metadata["ss_base_model_version"] == "sd_v1"
    assert metadata["ss_output_name"] == "my lora"
    assert (metadata["ss_network_dim"], metadata["ss_network_alpha"]) == ("4", "6")


def test_saved_loaded_saved_is_the_same_file_but_for_the_date(
    trained: tuple[StableDiffusion, list[LoraAdapter]], tiny_sd: Path, tmp_path: Path
) -> None:
    family, adapters = trained
    first, second, later = (tmp_path / d / "lora.safetensors" for d in ("one", "two", "three"))
    exporter(family, adapters).save(first, weights(adapters), now=NOW, step=3, epoch=1)
    again = load(str(tiny_sd), dtypes={})
    loaded = put_lora_on(again, first)
    loaded = sorted(loaded, key=lambda a: [b.part for b in adapters].index(a.part))
    exporter(again, loaded).save(second, weights(loaded), now=NOW, step=3, epoch=1)
    assert first.read_bytes() == second.read_bytes()
    exporter(again, loaded).save(later, weights(loaded), now=datetime(2027, 1, 1), step=3, epoch=1)
    assert later.read_bytes() != first.read_bytes()
    assert later.read_bytes().replace(b"2027-01-01T00:00:00", b"2026-01-02T03:04:05") == first.read_bytes()


def test_a_weight_that_is_no_number_is_never_saved(
    trained: tuple[StableDiffusion, list[LoraAdapter]], tmp_path: Path
) -> None:
    family, adapters = trained
    path = tmp_path / "lora.safetensors"
    exporter(family, adapters).save(path, weights(adapters), now=NOW, step=3, epoch=1)
    good = path.read_bytes()
    broken = weights(adapters)
    next(iter(broken.values()))[0, 0] = float("nan")
    with pytest.raises(DarkroomError, match="not numbers"):
        exporter(family, adapters).save(path, broken, now=NOW, step=4, epoch=1)
    assert path.read_bytes() == good
    assert [p.name for p in tmp_path.iterdir()] == ["lora.safetensors"]
