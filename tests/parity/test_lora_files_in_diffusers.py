"""Our LoRA files in stock diffusers: every layer is loaded, and the pipeline's image equals the trainer's sample."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from safetensors.torch import load_file

from modules.adapters.lora_layers import LoraAdapter, LoraShape, attach_lora
from modules.adapters.protocol import target_layers
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.data.dataset import Dataset
from modules.families.kinds.identify import who_loads_file
from modules.families.parts.part_classes import UNET_LAYERS
from modules.families.protocol import ModelFamily
from modules.settings.layer_filter import layer_filter
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over
from tests.builders.pipelines import load_tiny, sample_in_diffusers, sample_with_ours, stock_pipeline
from tests.builders.runs import assert_equal_tensors
from tests.builders.standalone import put_adapter_on
from trainer.__main__ import main
from trainer.export.adapter import AdapterExporter
from trainer.export.exporter import SaveMoment

PROMPT = SamplePrompt(
    prompt="a red disc", negative_prompt="blurred", width_px=64, height_px=64, seed=3, steps=4, guidance=3.0
)
METADATA = {
    "tiny-sd": ["stable-diffusion-v1/lora", "sd_v1", "False", "epsilon"],
    "tiny-sd2": ["stable-diffusion-v2-768-v/lora", "sd_v2_v", "True", "v"],
    "tiny-sdxl": ["stable-diffusion-xl-v1-base/lora", "sdxl_base_v1-0", "False", "epsilon"],
}
NOW = datetime(2026, 1, 2, 3, 4, 5)


Trained = tuple[Path, ModelFamily, list[LoraAdapter]]
LAYERS = [("tiny_sd", "attention_mlp"), ("tiny_sd", "all"), ("tiny_sd2", "all"), ("tiny_sdxl", "all")]


@pytest.fixture(params=LAYERS, ids=" ".join)
def trained(request: pytest.FixtureRequest) -> Trained:
    """A model with LoRA layers that have an effect: alpha differs from rank, B is random instead of zero."""
    name, layers = request.param
    folder = request.getfixturevalue(name)
    family = load_tiny(folder)
    adapters = []
    generator = torch.Generator().manual_seed(1)
    for part in (p for p in family.parts.values() if p.spec.trainable):
        targets = target_layers(
            part.module, part.spec.role, layers=layer_filter(layers, UNET_LAYERS), reaches=part.reaches
        )
        adapter = attach_lora(part.spec.name, part.module, targets, LoraShape(4, 6.0, 0.0, torch.float32), seed=5)
        for key, parameter in adapter.parameters().items():
            if "lora_B" in key:
                parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
        adapters.append(adapter)
    return folder, family, adapters


def exporter(family: ModelFamily, adapters: list[LoraAdapter], **output: str) -> AdapterExporter:
    config = laid_over(Config(), {"output": {"dtype": "float32", **output}, "adapter": {"rank": 4, "alpha": 6.0}})
    return AdapterExporter(adapters, family.lora_naming, config, Dataset((), (), 1))


def weights(adapters: list[LoraAdapter]) -> dict[str, torch.Tensor]:
    return {k: v.detach() for a in adapters for k, v in a.parameters().items()}


@pytest.mark.daily(1)
@pytest.mark.parametrize("form", ["kohya", "diffusers"])
def test_stock_diffusers_samples_the_trainers_image(trained: Trained, tmp_path: Path, form: str) -> None:
    folder, family, adapters = trained
    path = tmp_path / "lora.safetensors"
    exporter(family, adapters, format=form).save(path, weights(adapters), SaveMoment(NOW, step=3, epoch=1))
    ours = sample_with_ours(family, PROMPT)
    plain = sample_in_diffusers(stock_pipeline(folder), PROMPT)
    pipe = stock_pipeline(folder)
    pipe.load_lora_weights(path.parent, weight_name=path.name)
    assert np.abs(ours - sample_in_diffusers(pipe, PROMPT)).max() <= 1
    # The file has an effect: without it the image differs.
    assert np.abs(ours - plain).max() > 10
    # Every layer of the file is in the pipeline, with its weights.
    parts = [getattr(pipe, adapter.part) for adapter in adapters]
    taken = [m for part in parts for m in part.modules() if isinstance(m, LoraLayer)]
    assert len(taken) == sum(len(list(adapter.layers())) for adapter in adapters)


def test_every_layer_has_alpha_and_a_name_that_other_programs_support(trained: Trained, tmp_path: Path) -> None:
    _, family, adapters = trained
    path = tmp_path / "lora.safetensors"
    exporter(family, adapters).save(path, weights(adapters), SaveMoment(NOW, step=3, epoch=1))
    tensors = load_file(path)
    layers = {k.split(".", 1)[0] for k in tensors}
    assert len(layers) == sum(len(list(a.layers())) for a in adapters)
    for layer in layers:
        assert layer.startswith(
            ("lora_unet_", *(f"lora_{te}_text_model_encoder_layers_" for te in ("te", "te1", "te2")))
        )
        assert tensors[f"{layer}.alpha"].shape == ()
        assert tensors[f"{layer}.alpha"].item() == 6.0


def test_comfyuis_format_has_the_names_of_its_models(trained: Trained, tmp_path: Path) -> None:
    """Converted into kohya's format, the file is bit for bit the one that is written in that format."""
    _, family, adapters = trained
    paths = {name: tmp_path / f"{name}.safetensors" for name in ("kohya", "comfyui", "converted", "back")}
    for form in ("kohya", "comfyui"):
        exporter(family, adapters, format=form).save(paths[form], weights(adapters), SaveMoment(NOW, step=3, epoch=1))
    by_form = ({x.program: x for x in who_loads_file(paths[form])[1]} for form in ("kohya", "comfyui"))
    kohya, comfyui = (loads["ComfyUI"] for loads in by_form)
    assert comfyui == kohya  # whose only doubt is the size of the model
    names = {name.partition(".lora_")[0] for name in load_file(paths["comfyui"]) if ".lora_" in name}
    assert all(name.startswith(("diffusion_model.", "text_encoders.clip_")) for name in names)
    assert any(name.startswith("diffusion_model.input_blocks.") for name in names)
    assert main(["convert", str(paths["comfyui"]), str(paths["converted"]), "--to", "kohya"]) == 0
    assert main(["convert", str(paths["kohya"]), str(paths["back"]), "--to", "comfyui"]) == 0
    assert_equal_tensors(load_file(paths["converted"]), load_file(paths["kohya"]))
    assert_equal_tensors(load_file(paths["back"]), load_file(paths["comfyui"]))


def test_metadata_is_readable_by_other_programs(trained: Trained, tmp_path: Path) -> None:
    folder, family, adapters = trained
    path = tmp_path / "my lora.safetensors"
    exporter(family, adapters).save(path, weights(adapters), SaveMoment(NOW, step=3, epoch=1))
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    model_keys = [metadata[k] for k in ("modelspec.architecture", "ss_base_model_version", "ss_v2")]
    assert [*model_keys, metadata["modelspec.prediction_type"]] == METADATA[folder.name]
    assert metadata["ss_output_name"] == "my lora"
    assert (metadata["ss_network_dim"], metadata["ss_network_alpha"]) == ("4", "6")


def test_saved_loaded_saved_is_the_same_file_but_for_the_date(trained: Trained, tmp_path: Path) -> None:
    folder, family, adapters = trained
    first, second, later = (tmp_path / d / "lora.safetensors" for d in ("one", "two", "three"))
    exporter(family, adapters).save(first, weights(adapters), SaveMoment(NOW, step=3, epoch=1))
    again = load_tiny(folder)
    loaded = put_adapter_on(again, first)
    loaded = sorted(loaded, key=lambda a: [b.part for b in adapters].index(a.part))
    exporter(again, loaded).save(second, weights(loaded), SaveMoment(NOW, step=3, epoch=1))
    assert first.read_bytes() == second.read_bytes()
    new_year = datetime(2027, 1, 1)
    exporter(again, loaded).save(later, weights(loaded), SaveMoment(new_year, step=3, epoch=1))
    content = later.read_bytes()
    assert content != first.read_bytes()
    content = content.replace(b"2027-01-01T00:00:00", b"2026-01-02T03:04:05")
    content = content.replace(str(new_year.timestamp()).encode(), str(NOW.timestamp()).encode())
    assert content == first.read_bytes()


def test_a_weight_that_is_not_finite_is_never_saved(trained: Trained, tmp_path: Path) -> None:
    _, family, adapters = trained
    path = tmp_path / "lora.safetensors"
    exporter(family, adapters).save(path, weights(adapters), SaveMoment(NOW, step=3, epoch=1))
    good = path.read_bytes()
    broken = weights(adapters)
    next(iter(broken.values()))[0, 0] = float("nan")
    with pytest.raises(DarkroomError, match="NaN or infinite"):
        exporter(family, adapters).save(path, broken, SaveMoment(NOW, step=4, epoch=1))
    assert path.read_bytes() == good
    assert [p.name for p in tmp_path.iterdir()] == ["lora.safetensors"]
