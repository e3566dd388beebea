"""Sana alone: its instruction, its deep latents, Sana 1.5, its files; the rest is in tests/training/flow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.config.codec import decode
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.parts.single_file.checkpoint import load_part_file
from modules.families.parts.single_file.moves import to_original
from modules.families.protocol import LoadRequest
from modules.families.sana.files import TRANSFORMER_FILE
from modules.families.sana.model import Sana, load
from modules.families.sana.spec import SANA, SanaSettings
from modules.formats.lazy_tensors import lazy_state
from modules.sampling.denoising_loop import initial_noise, run_denoising_loop, scheduler_for
from modules.sampling.prediction import guided_prediction
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from tests.builders.configs import config_fixture, laid_over
from tests.builders.pipelines import family_fixture, load_tiny, noise_of
from tests.builders.runs import assert_equal_tensors, run
from tests.builders.sana import TINY, pipeline_text, sana_pipeline, write_sana_folder
from trainer.preflight import check

WIDE = Size(96, 64)


@pytest.fixture(scope="module")
def tiny_1_5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sana 1.5 has norms of queries and keys; of 2048 px and more it also has positions."""
    folder = tmp_path_factory.mktemp("models") / "tiny-sana-1.5"
    return write_sana_folder(folder, qk_norm="rms_norm_across_heads", interpolation_scale=1.0)


family = family_fixture("tiny_sana", SANA.name)
config = config_fixture("tiny_sana", {"training": {"epochs": 1}})


# -- prompts


@torch.no_grad()
def test_prompts_are_read_after_the_instruction_in_lower_case(tiny_sana: Path, family: Sana) -> None:
    """Blanks at the ends are nothing, and those before a word belong to it, also to the first one."""
    states = family.encode_prompts(["  A Red disc "]).states_BLD
    assert torch.equal(states, family.encode_prompts(["a red disc"]).states_BLD)
    without = family.read([(family.plain, "a red disc")]).states_BLD
    assert not torch.allclose(states[:, -1], without[:, -1], atol=1e-3)
    first = family.reader.tokenizer.tokenizer.id_to_token(family.reader.ids("a red disc")[family.reader.begin])
    assert first == "▁a"
    theirs = pipeline_text(sana_pipeline(tiny_sana, family), "  A Red disc ")["states"]
    torch.testing.assert_close(states, theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_negative_prompts_are_read_without_it(tiny_sana: Path, family: Sana) -> None:
    """As the pipeline reads them, and so the empty prompt of dropped captions."""
    pipe = sana_pipeline(tiny_sana, family)
    guided = family.encode_guided("Blurred", "a disc")
    for index, theirs in enumerate(
        (pipeline_text(pipe, "x", negative="Blurred")["states"], pipeline_text(pipe, "a disc")["states"])
    ):
        states_LD = guided.split()[index]
        torch.testing.assert_close(states_LD, theirs[0], rtol=1e-5, atol=1e-5)
    assert family.encode_prompts([""]).lengths == (1,)  # the start token


def test_a_tokenizer_of_another_model_is_refused(tiny_sana: Path, tiny_z_image: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_sana, copy)
    shutil.copy(tiny_z_image / "tokenizer" / "tokenizer.json", copy / "tokenizer")
    with pytest.raises(DarkroomError, match="has no token <bos>"):
        load(LoadRequest(str(copy), SanaSettings()))


# -- latents and other models


@torch.no_grad()
def test_latents_have_no_distribution(tiny_sana: Path, family: Sana) -> None:
    """Drawn or not, they are those of diffusers' autoencoder."""
    images = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0)) * 2 - 1
    vae = sana_pipeline(tiny_sana, family).vae
    theirs = vae.encode(images).latent * vae.config.scaling_factor
    assert theirs.shape == (2, 32, 2, 3)
    torch.testing.assert_close(family.encode_images(images), theirs, rtol=1e-4, atol=1e-4)
    drawn = family.encode_images(images, torch.Generator().manual_seed(1))
    torch.testing.assert_close(drawn, theirs, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["tiny_sana", "tiny_1_5"])
def test_a_wide_sample_is_that_of_diffusers_pipeline(name: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(name)
    family: Sana = load_tiny(folder, SANA.name)
    noise, generator = initial_noise((1, *SANA.latents.shape(96, 64)), seed=3, device=CPU)
    text, empty = family.encode_prompts(["a red disc"]), family.encode_prompts([""])
    latents = run_denoising_loop(
        guided_prediction(family, text, empty, size=WIDE, guidance=3.0),
        scheduler_for(family, "euler", WIDE),
        noise,
        num_steps=4,
        generator=generator,
        on_step=lambda: None,
    )
    theirs, _ = TINY.sample(sana_pipeline(folder, family), "a red disc", noise, 3.0)
    torch.testing.assert_close(latents, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("key", "shift"), [("flow_shift", 6.0), ("shift", 2.0)])
def test_the_shift_is_that_of_the_scheduler(key: str, shift: float, tiny_sana: Path, tmp_path: Path) -> None:
    """Models of 4096 px have another one; a model saved with Euler's scheduler has it under another name."""
    copy = tmp_path / "model"
    shutil.copytree(tiny_sana, copy)
    file = copy / "scheduler" / "scheduler_config.json"
    tree = {k: v for k, v in json.loads(file.read_text()).items() if k != "flow_shift"}
    file.write_text(json.dumps({**tree, key: shift}))
    family: Sana = load_tiny(copy, SANA.name)
    assert family.process.convention.shift_at(1024, 1024) == shift


def test_sana_sprint_is_refused(tmp_path: Path) -> None:
    folder = write_sana_folder(tmp_path / "sprint", guidance_embeds=True)
    with pytest.raises(DarkroomError, match="is Sana Sprint"):
        load(LoadRequest(str(folder), SanaSettings()))


# -- files


@pytest.mark.parametrize("name", ["tiny_sana", "tiny_1_5"])
def test_a_published_file_replaces_the_transformer(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """It has tensors besides the weights, and is a .pth."""
    family: Sana = load_tiny(request.getfixturevalue(name), SANA.name)
    module, file = family.denoiser, tmp_path / "sana.pth"
    original = to_original(TRANSFORMER_FILE.layout(dict(module.config)).slots, lazy_state(module.state_dict()))
    tensors = {name.removeprefix("model.diffusion_model."): t.make().contiguous() for name, t in original.items()}
    tensors |= {"pos_embed": torch.zeros(1, 4, 32), "y_embedder.y_embedding": torch.zeros(300, 24)}
    tensors |= {"logvar_linear.weight": torch.zeros(1, 32), "logvar_linear.bias": torch.zeros(1)}
    torch.save({"state_dict": tensors}, file)
    kind = identify(file)
    assert (kind.kind, kind.family, kind.model) == ("part", SANA.name, SANA.name)
    read = load_part_file(file, SANA, SANA.denoiser, dict(module.config), torch.float32)
    assert_equal_tensors(read.state_dict(), module.state_dict())
    if name == "tiny_1_5":
        assert torch.equal(read.patch_embed.pos_embed, module.patch_embed.pos_embed)


def test_its_lora_is_for_diffusers_alone(config: Config, tmp_path: Path) -> None:
    """By its pipeline's own loader, also the factors of convolutions of single pixels (tests/training/flow)."""
    output = {"format": "diffusers", "destination": str(tmp_path / "lora.safetensors")}
    file = Path(run(laid_over(config, {"output": output})).finished.model_path)
    loads = {x.program: x.loads for x in who_loads_file(file)[1]}
    assert (loads["ComfyUI"], loads["diffusers"]) == ("none", "all")


def test_a_text_encoder_from_a_file_has_the_factor_of_its_embeddings(
    tiny_sana: Path, family: Sana, tmp_path: Path
) -> None:
    """It is in no file, and would be rounded with the weights."""
    encoder = family.modules["text_encoder"]
    file = tmp_path / "gemma.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in encoder.state_dict().items()}, file)
    part = next(p for p in SANA.parts if p.name == "text_encoder")
    for dtype in (torch.float32, torch.bfloat16):
        read = load_part_file(file, SANA, part, encoder.config.to_dict(), dtype)
        in_folder = load(LoadRequest(str(tiny_sana), SanaSettings(), dtypes={"text_encoder": dtype}))
        for one in (read, in_folder.modules["text_encoder"]):
            assert one.embed_tokens.embed_scale == torch.tensor(24**0.5)


# -- what the user sees


def test_sizes_are_multiples_of_32_px(config: Config) -> None:
    [error] = check(laid_over(config, {"data": {"bucket_step_px": 16}})).errors
    assert error.message == "The bucket step of 16 px does not work with Sana."


@pytest.mark.parametrize("name", ["prior", "transformer"])
def test_a_config_of_onetrainer_loads(name: str) -> None:
    part = {"train": True, "weight_dtype": "BFLOAT_16", "learning_rate": 1e-4}
    config = decode({"model_type": "SANA", "training_method": "LORA", name: part}).config
    assert (config.family.name, config.part("transformer").learning_rate) == (SANA.name, 1e-4)
    assert config.output.format == "auto"


def test_the_adapters_leave_convolutions_within_channels_alone(config: Config, family: Sana) -> None:
    weights = run(laid_over(config, {"adapter": {"layers": "all"}})).weights
    assert not [name for name in weights if "conv_depth" in name]
    assert any("conv_inverted" in name for name in weights)
    noisy = noise_of(family, batch=1, seed=0)
    assert family.predict(noisy, torch.tensor([500.0]), family.encode_prompts(["a"])).shape == noisy.shape
