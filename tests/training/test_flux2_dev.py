"""FLUX.2 dev alone: its text encoder, guidance and runs; what it shares with klein is tested there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Mistral3ForConditionalGeneration, MistralModel

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.flux2.load import Flux2Dev
from modules.families.flux2.spec import FLUX2
from modules.families.parts.packing import pack
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import shipped_configs
from modules.families.registry import files_of
from modules.sampling.denoising_loop import initial_noise, run_denoising_loop, scheduler_for
from modules.sampling.prediction import guided_prediction
from modules.system.devices import CPU
from modules.system.factories import load_factory
from tests.builders.configs import laid_over, small_config
from tests.builders.flux2 import flux2_pipeline, write_flux2_folder
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny, noise_of
from tests.builders.runs import Ran, run
from trainer.__main__ import main

SIZE = Size(64, 64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flux2_folder(tmp_path_factory.mktemp("flux2") / "model")


@pytest.fixture(scope="module")
def family(model: Path) -> Flux2Dev:
    family: Flux2Dev = load_tiny(model, FLUX2.name)
    return family


@pytest.fixture(scope="module")
def pipe(model: Path, family: Flux2Dev) -> Any:
    return flux2_pipeline(model, family)


@torch.no_grad()
@pytest.mark.parametrize("prompt", ["a disc", "", "a [IMG] disc", "a " * 600])
def test_the_text_is_that_of_diffusers_pipeline(family: Flux2Dev, pipe: Any, prompt: str) -> None:
    """Of the whole Mistral-Small 3 there, with the padding before the prompt."""
    theirs = pipe.encode_prompt([prompt], device="cpu")[0]
    torch.testing.assert_close(family.encode_prompts([prompt]).states_BLD, theirs, rtol=1e-5, atol=1e-5)


def test_the_vision_tower_is_not_loaded(model: Path, family: Flux2Dev) -> None:
    whole = Mistral3ForConditionalGeneration.from_pretrained(model / "text_encoder")
    names = [name for name, _ in family.modules["text_encoder"].named_parameters()]
    assert len(names) == len(list(whole.model.language_model.parameters()))
    assert not [name for name in names if "vision" in name or "projector" in name]


@torch.no_grad()
@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_a_sample_is_that_of_diffusers_pipeline(family: Flux2Dev, pipe: Any, guidance: float) -> None:
    noise, generator = initial_noise((1, *FLUX2.latents.shape(64, 64)), seed=3, device=CPU)
    options = {"guidance_scale": guidance, "num_inference_steps": 4, "height": 64, "width": 64}
    patches = torch.pixel_unshuffle(noise, 2)
    tokens, image = (
        pipe(prompt="a disc", latents=patches, output_type=kind, **options).images for kind in ("latent", "pt")
    )
    latents = run_denoising_loop(
        guided_prediction(family, family.encode_prompts(["a disc"]), None, size=SIZE, guidance=guidance),
        scheduler_for(family, "euler", SIZE),
        noise,
        num_steps=4,
        generator=generator,
        on_step=lambda: None,
    )
    torch.testing.assert_close(pack(latents), tokens, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close((family.decode(latents) / 2 + 0.5).clamp(0, 1), image, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_training_reads_the_guidance_of_the_settings(family: Flux2Dev) -> None:
    text, noisy, times = family.encode_prompts(["a disc"]), noise_of(family, batch=1, seed=1), torch.tensor([500.0])
    trained, of_one, of_four = (
        family.predict(noisy, times, one)
        for one in (text, family.with_guidance(text, 1.0), family.with_guidance(text, 4.0))
    )
    assert torch.equal(trained, of_one)
    assert not torch.allclose(trained, of_four, atol=1e-4)


def test_the_published_parts_have_their_numbers_of_weights() -> None:
    configs = shipped_configs("flux2_dev")
    found = {
        part.name: sum(t.numel() for t in empty_part(load_factory(part.model_class), configs[part.name]).parameters())
        for part in FLUX2.parts
    }
    assert found["transformer"] == 32_223_281_152
    assert found["text_encoder"] == 22_901_314_560  # Mistral-Small's 24 billion without the vision tower and the head
    assert files_of(FLUX2.name).models[0].name == "flux2_dev"


@pytest.fixture(scope="module")
def config(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    images = draw_folder(tmp_path_factory.mktemp("images"), sizes=[(64, 64)] * 2, captions=["a disc", "a square"])
    own = {
        "model": {"family": {"text_tokens": 256}},
        "data": {"latent_cache": True, "text_cache": True},
        "training": {"epochs": 2, "batch_size": 2, "learning_rate": 0.01},
        "output": {"dtype": "float32", "format": "diffusers"},
        "sampling": {
            "every": {"n": 1, "unit": "epoch"},
            "prompts": [{"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 4.0}],
        },
    }
    return laid_over(small_config(tmp_path_factory.mktemp("run"), model=model, images=images), own)


@pytest.fixture(scope="module")
def ran(config: Config) -> Ran:
    return run(config)


@torch.no_grad()
def test_a_lora_is_trained_sampled_and_loaded_by_diffusers(
    ran: Ran, family: Flux2Dev, pipe: Any, model: Path, tmp_path: Path
) -> None:
    written, merged = Path(ran.finished.model_path), tmp_path / "merged"
    text, noisy, times = family.encode_prompts(["a disc"]), noise_of(family, batch=1, seed=5), torch.tensor([500.0])
    plain = family.predict(noisy, times, text)
    assert main(["lora-merge", str(model), str(merged), str(written)]) == 0
    tuned = load_tiny(merged, FLUX2.name).predict(noisy, times, text)
    assert not torch.allclose(plain, tuned, atol=1e-3)
    pipe.load_lora_weights(written)
    torch.testing.assert_close(family.predict(noisy, times, text), tuned, rtol=1e-4, atol=1e-5)
    pipe.unload_lora_weights()
    # The merged folder has the language model alone, which the pipeline reads prompts with, too.
    assert json.loads((merged / "model_index.json").read_text())["text_encoder"] == ["transformers", "MistralModel"]
    encoder, loading = MistralModel.from_pretrained(merged / "text_encoder", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    whole, pipe.text_encoder = pipe.text_encoder, encoder.eval()
    torch.testing.assert_close(pipe.encode_prompt(["a disc"], device="cpu")[0], text.states_BLD, rtol=1e-5, atol=1e-5)
    pipe.text_encoder = whole
