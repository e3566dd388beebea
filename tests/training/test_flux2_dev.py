"""FLUX.2 dev alone: its text encoder and guidance; what flow families share is in tests/training/flow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Mistral3ForConditionalGeneration, MistralModel

from benchmarks.gguf_file import write_gguf
from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.families.flux2.model import Flux2Dev
from modules.families.flux2.spec import FLUX2
from modules.families.kinds.identify import identify
from modules.families.parts.single_file.checkpoint import empty_part, load_part_file
from modules.families.parts.single_file.models import shipped_configs
from modules.families.parts.single_file.moves import to_original
from modules.families.registry import files_of
from modules.formats.lazy_tensors import lazy_state
from modules.quantization.linear import QuantizedLinear
from modules.sampling.prediction import with_guidance
from modules.system.factories import load_factory
from tests.builders.configs import laid_over, small_config
from tests.builders.flux2 import TINY, flux2_pipeline
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny, noise_of
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.__main__ import main
from trainer.run.reading import load_family


@pytest.fixture(scope="module")
def family(tiny_flux2_dev: Path) -> Flux2Dev:
    family: Flux2Dev = load_tiny(tiny_flux2_dev, FLUX2.name)
    return family


@pytest.fixture(scope="module")
def pipe(tiny_flux2_dev: Path, family: Flux2Dev) -> Any:
    return flux2_pipeline(tiny_flux2_dev, family)


@torch.no_grad()
def test_the_place_of_an_image_is_not_read_as_in_diffusers_pipeline(family: Flux2Dev, pipe: Any) -> None:
    states = TINY.text(pipe, "a [IMG] disc")["states"]
    torch.testing.assert_close(family.encode_prompts(["a [IMG] disc"]).states_BLD, states, rtol=1e-5, atol=1e-5)


def test_the_vision_tower_is_not_loaded(tiny_flux2_dev: Path, family: Flux2Dev) -> None:
    whole = Mistral3ForConditionalGeneration.from_pretrained(tiny_flux2_dev / "text_encoder")
    names = [name for name, _ in family.modules["text_encoder"].named_parameters()]
    assert len(names) == len(list(whole.model.language_model.parameters()))
    assert not [name for name in names if "vision" in name or "projector" in name]


@torch.no_grad()
def test_training_reads_the_guidance_of_the_settings(family: Flux2Dev) -> None:
    text, noisy, times = family.encode_prompts(["a disc"]), noise_of(family, batch=1, seed=1), torch.tensor([500.0])
    trained, of_one, of_four = (
        family.predict(noisy, times, one)
        for one in (text, with_guidance(family, text, 1.0), with_guidance(family, text, 4.0))
    )
    assert torch.equal(trained, of_one)
    assert not torch.allclose(trained, of_four, atol=1e-4)


def test_the_published_text_encoder_is_mistral_small_without_the_vision_tower_and_the_head() -> None:
    part = next(p for p in FLUX2.parts if p.role == "text_encoder")
    config = shipped_configs("flux2_dev")[part.name]
    weights = empty_part(load_factory(part.model_class), config).parameters()
    assert sum(tensor.numel() for tensor in weights) == 22_901_314_560  # of 24 billion


@pytest.mark.parametrize("prefix", ["model.", "language_model.model.", ""])
def test_the_text_encoder_is_read_from_comfyuis_file(prefix: str, family: Flux2Dev, tmp_path: Path) -> None:
    """Its file also has the vision tower with its projector, and the tokenizer as bytes; ours has the head."""
    module, file = family.modules["text_encoder"], tmp_path / "mistral_3_small_flux2_bf16.safetensors"
    state = {f"{prefix}{name}": tensor.clone() for name, tensor in module.state_dict().items()}
    others = ("vision_tower.transformer.layers.0.attention.q_proj.weight", "multi_modal_projector.linear_1.weight")
    state |= {name: torch.ones(2, 2) for name in (*others, "lm_head.weight")}
    save_file({**state, "tekken_model": torch.ones(8, dtype=torch.uint8)}, file)
    part = next(p for p in FLUX2.parts if p.role == "text_encoder")
    read = load_part_file(file, FLUX2, part, module.config.to_dict(), torch.float32)
    assert_equal_tensors(dict(read.state_dict()), dict(module.state_dict()))


def test_the_transformer_is_read_from_a_gguf_file_in_the_published_names(
    config: Config, family: Flux2Dev, tiny_flux2_dev: Path, tmp_path: Path
) -> None:
    module, file = family.denoiser, tmp_path / "flux2-dev-Q8_0.gguf"
    record = files_of(FLUX2.name).denoiser_file
    assert record is not None
    layout = record.layout(dict(module.config))
    original = to_original(layout.slots, lazy_state(dict(module.state_dict())))
    write_gguf(file, {name: tensor.make() for name, tensor in original.items()}, kind="Q8_0")
    assert identify(file).model == "flux2_dev"
    packed = laid_over(config, {"parts": {"transformer": {"file": str(file), "dtype": "gguf"}}})
    loaded = load_family(packed.model, packed.part, quantized=quantized_parts(packed))
    assert isinstance(loaded.denoiser.get_submodule("transformer_blocks.0.attn.to_out.0"), QuantizedLinear)
    text, noisy, times = family.encode_prompts(["a disc"]), noise_of(family, batch=1, seed=5), torch.tensor([500.0])
    with torch.no_grad():
        plain, quantized = (f.predict(noisy, times, text) for f in (family, loaded))
    assert 0 < (quantized - plain).norm() < 0.05 * plain.norm()


@pytest.fixture(scope="module")
def config(tiny_flux2_dev: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    images = draw_folder(tmp_path_factory.mktemp("images"), sizes=[(64, 64)] * 2, captions=["a disc", "a square"])
    own = {
        "model": {"family": dict(TINY.settings)},
        "data": {"latent_cache": True, "text_cache": True},
        "training": {"epochs": 2, "batch_size": 2, "learning_rate": 0.01},
        "output": {"dtype": "float32", "format": "diffusers"},
        "sampling": {
            "every": {"n": 1, "unit": "epoch"},
            "prompts": [{"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 4.0}],
        },
    }
    return laid_over(small_config(tmp_path_factory.mktemp("run"), model=tiny_flux2_dev, images=images), own)


@pytest.fixture(scope="module")
def ran(config: Config) -> Ran:
    return run(config)


@pytest.mark.full
@torch.no_grad()
def test_a_lora_is_trained_sampled_and_loaded_by_diffusers(
    ran: Ran, family: Flux2Dev, pipe: Any, tiny_flux2_dev: Path, tmp_path: Path
) -> None:
    written, merged = Path(ran.finished.model_path), tmp_path / "merged"
    text, noisy, times = family.encode_prompts(["a disc"]), noise_of(family, batch=1, seed=5), torch.tensor([500.0])
    plain = family.predict(noisy, times, text)
    assert main(["lora-merge", str(tiny_flux2_dev), str(merged), str(written)]) == 0
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
