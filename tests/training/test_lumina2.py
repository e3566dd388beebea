"""Lumina 2 alone: instruction, norms of guided rows, positions, files; the rest is in tests/training/flow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from diffusers.models.transformers.transformer_lumina2 import Lumina2RotaryPosEmbed
from safetensors.torch import save_file

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.lumina2.files import TRANSFORMER_FILE
from modules.families.lumina2.model import Lumina2
from modules.families.lumina2.positions import Positions
from modules.families.lumina2.spec import LUMINA2
from modules.families.parts.single_file.checkpoint import load_part_file
from modules.families.parts.single_file.moves import to_original
from modules.formats.lazy_tensors import lazy_state
from modules.sampling.denoising_loop import initial_noise, run_denoising_loop, scheduler_for
from modules.sampling.prediction import guided_prediction
from modules.system.devices import CPU
from tests.builders.configs import config_fixture, laid_over
from tests.builders.lumina2 import lumina2_pipeline, pipeline_text
from tests.builders.pipelines import family_fixture, latents_and_image, load_tiny, noise_of
from tests.builders.runs import assert_equal_tensors, run

WIDE = Size(96, 64)
family = family_fixture("tiny_lumina2", LUMINA2.name)
config = config_fixture("tiny_lumina2", {"training": {"epochs": 1}})


# -- prompts and guidance


@torch.no_grad()
def test_prompts_are_read_after_the_instruction_and_negative_ones_alone(tiny_lumina2: Path, family: Lumina2) -> None:
    """As the pipeline reads them, and so the empty prompt of dropped captions."""
    pipe = lumina2_pipeline(tiny_lumina2, family)
    guided = family.encode_guided("Blurred", "A disc")
    for states_LD, theirs in zip(
        guided.split(), (pipeline_text(pipe, "x", negative="Blurred"), pipeline_text(pipe, "A disc")), strict=True
    ):
        torch.testing.assert_close(states_LD, theirs["states"][0], rtol=1e-5, atol=1e-5)
    assert family.encode_prompts([""]).lengths == (1,)  # the start token


@torch.no_grad()
@pytest.mark.parametrize("keeps_norm", [True, False])
def test_a_guided_wide_sample_has_the_norms_of_the_pipelines_default(
    keeps_norm: bool, tiny_lumina2: Path, family: Lumina2
) -> None:
    noise, generator = initial_noise((1, *LUMINA2.latents.shape(96, 64)), seed=3, device=CPU)
    text, empty = family.encode_prompts(["a red disc"]), family.encode_prompts([""])
    latents = run_denoising_loop(
        guided_prediction(family, text, empty, size=WIDE, guidance=3.0),
        scheduler_for(family, "euler", WIDE),
        noise,
        num_steps=4,
        generator=generator,
        on_step=lambda: None,
    )
    pipe = lumina2_pipeline(tiny_lumina2, family)
    theirs, _ = latents_and_image(pipe, noise, 3.0, prompt="a red disc", cfg_normalization=keeps_norm)
    assert torch.allclose(latents, theirs, rtol=1e-4, atol=1e-4) is keeps_norm


# -- positions


def test_the_positions_are_those_of_diffusers() -> None:
    """For prompts of two lengths, whose padding has no position, and as the mask or the caller states the lengths."""
    ours = Positions((4, 6, 6), (300, 32, 32), 2)
    theirs = Lumina2RotaryPosEmbed(theta=10000, axes_dim=[4, 6, 6], axes_lens=[300, 32, 32], patch_size=2)
    latents = torch.randn(2, 16, 6, 10, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(7)[None] < torch.tensor([[7], [3]])
    with ours.of([7, 3]):
        stated = ours(latents, mask)
    patches, text, image, both, lengths, totals = theirs(latents, mask)
    for found in (stated, ours(latents, mask)):
        assert found[4:] == (lengths, totals)
        assert torch.equal(found[0], patches)
        assert_close(found[2], image)
        for index, (length, total) in enumerate(zip(lengths, totals, strict=True)):
            assert_close(found[1][index, :length], text[index, :length])
            assert_close(found[3][index, :total], both[index, :total])


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Rotations are of 32 bits here, and of 64 bits in diffusers."""
    torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=1e-6, atol=1e-6)


# -- files


def test_the_published_folder_has_the_older_name_of_the_pipeline(tiny_lumina2: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_lumina2, copy)
    index = copy / "model_index.json"
    index.write_text(index.read_text().replace("Lumina2Pipeline", "Lumina2Text2ImgPipeline"))
    assert identify(copy).family == LUMINA2.name
    assert load_tiny(copy, LUMINA2.name).spec is LUMINA2


def test_a_published_file_replaces_the_transformer_and_is_not_z_images(family: Lumina2, tmp_path: Path) -> None:
    """It has a norm that nothing uses, and most names of Z-Image's."""
    module, file = family.denoiser, tmp_path / "lumina.safetensors"
    original = to_original(TRANSFORMER_FILE.layout(dict(module.config)).slots, lazy_state(module.state_dict()))
    tensors = {name.removeprefix("model.diffusion_model."): t.make().contiguous() for name, t in original.items()}
    save_file({**tensors, "norm_final.weight": torch.zeros(48)}, file)
    kind = identify(file)
    assert (kind.kind, kind.family, kind.model) == ("part", LUMINA2.name, LUMINA2.name)
    read = load_part_file(file, LUMINA2, LUMINA2.denoiser, dict(module.config), torch.float32)
    assert_equal_tensors(read.state_dict(), module.state_dict())
    assert not TRANSFORMER_FILE.is_in(["noise_refiner.0.adaLN_modulation.0.weight", "cap_embedder.1.weight"])


def test_its_lora_in_diffusers_form_is_for_diffusers_alone(config: Config, tmp_path: Path) -> None:
    """ComfyUI maps the names of the published checkpoint, which other forms have."""
    output = {"format": "diffusers", "destination": str(tmp_path / "lora.safetensors")}
    file = Path(run(laid_over(config, {"output": output})).finished.model_path)
    loads = {x.program: x.loads for x in who_loads_file(file)[1]}
    assert (loads["ComfyUI"], loads["diffusers"]) == ("none", "all")


@torch.no_grad()
def test_time_runs_from_noise_to_image_and_the_output_is_negated(family: Lumina2) -> None:
    """diffusers' pipeline reads `1 - t / 1000` and negates what the transformer returns."""
    noisy, text = noise_of(family, batch=1, seed=0), family.encode_prompts(["a"])
    mask = torch.ones(text.states_BLD.shape[:2], dtype=torch.bool)
    [output] = family.denoiser(noisy, torch.tensor([0.75]), text.states_BLD, mask, return_dict=False)
    assert_close(family.predict(noisy, torch.tensor([250.0]), text), -output)
