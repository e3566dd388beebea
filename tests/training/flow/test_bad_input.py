"""What preflight says of bad input of every flow family, before anything is loaded."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.config.schema import Config
from tests.builders.configs import laid_over
from tests.builders.flow_models import FlowModel
from tests.builders.runs import errors_of
from trainer.preflight import check


@pytest.mark.daily(1)
def test_captions_beyond_the_tokens_that_are_read_are_reported(
    config: Config, images: Path, model: Path, tiny: FlowModel, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    denoiser = json.loads((model / tiny.spec.denoiser.name / "config.json").read_text())
    tokens = config.model.family.tokens_read(tiny.spec.text.chunk_tokens, denoiser)
    (folder / "000.txt").write_text("a " * (tokens + 8))
    problems = check(laid_over(config, {"concepts": [{"path": str(folder)}]})).problems
    [long] = [p for p in problems if f"longer than the {tokens} tokens that the model reads" in p.message]
    assert (long.path, long.severity) == ("concepts", "warning")
    assert long.message.startswith("1 of")


@pytest.mark.daily(2)
def test_a_model_without_its_tokenizers_is_refused(
    config: Config, model: Path, tiny: FlowModel, tmp_path: Path
) -> None:
    if tiny.spec.text.ships_vocabulary:
        return  # the program contains the tokenizer
    copy, tokenizers = tmp_path / "model", tuple(tiny.spec.tokenizers.values())
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns(*tokenizers))
    message = errors_of(config, model={"base_model": str(copy)})["model.base_model"]
    assert f"its {tokenizers[0]} is missing" in message


def test_a_vae_of_another_family_is_refused(config: Config, tiny: FlowModel, request: pytest.FixtureRequest) -> None:
    needed = tiny.spec.latents.channels
    other, channels = ("tiny_sd", 4) if needed != 4 else ("tiny_chroma", 16)
    vae = request.getfixturevalue(other) / "vae"
    message = errors_of(config, parts={"vae": {"file": str(vae)}})["parts.vae.file"]
    assert message.endswith(f"is a VAE with {channels} latent channels; {tiny.spec.label} needs {needed}.")


def test_a_model_of_another_family_is_refused(config: Config, tiny: FlowModel, tiny_sd: Path) -> None:
    """As with the preset of one family and the model of another."""
    message = errors_of(config, model={"base_model": str(tiny_sd)})["model.base_model"]
    assert re.search(rf"is a Stable Diffusion 1 and 2 model, not an? {re.escape(tiny.spec.label)} model\.$", message)


@pytest.mark.daily(3)
def test_a_denoiser_alone_is_no_base_model(config: Config, model: Path, tiny: FlowModel, tmp_path: Path) -> None:
    alone = tmp_path / "alone.safetensors"
    shutil.copyfile(model / tiny.spec.denoiser.name / "diffusion_pytorch_model.safetensors", alone)
    lacks = " and no ".join(part.label for part in tiny.spec.in_base_model.parts if part.role != "denoiser")
    message = errors_of(config, model={"base_model": str(alone)})["model.base_model"]
    assert f"alone.safetensors has no {lacks}. " in message


def test_a_lora_of_another_family_is_refused(config: Config, tmp_path: Path) -> None:
    file, layer = tmp_path / "sd.safetensors", "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    factors = {"lora_down.weight": torch.ones(2, 320), "lora_up.weight": torch.ones(320, 2), "alpha": torch.tensor(2.0)}
    save_file({f"{layer}.{name}": tensor for name, tensor in factors.items()}, file)
    message = errors_of(config, adapter={"start_from": str(file)})["adapter.start_from"]
    assert "is for another model family" in message
    assert "Stable Diffusion" in message


@pytest.mark.daily(1)
def test_a_text_encoder_of_another_size_is_refused(
    config: Config, model: Path, tiny: FlowModel, tmp_path: Path
) -> None:
    for encoder, (key, _) in tiny.spec.text.widths.items():
        copy = tmp_path / encoder
        shutil.copytree(model, copy)
        file = copy / encoder / "config.json"
        written = json.loads(file.read_text())
        own = written.get("text_config", written)  # of a language model inside a larger one
        own[key] = 4096
        file.write_text(json.dumps(written))
        message = errors_of(config, model={"base_model": str(copy)})["model.base_model"]
        assert "has states of width 4096; its" in message
