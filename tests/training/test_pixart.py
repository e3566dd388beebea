"""PixArt alone: sigma next to alpha, sizes, the variance it predicts, its files; the rest is in tests/training/flow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from safetensors.torch import save_file

from modules.config.codec import decode
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.parts.single_file.checkpoint import load_part_file
from modules.families.parts.single_file.models import shipped_configs
from modules.families.parts.single_file.moves import to_original
from modules.families.pixart.files import MISSING_PROMPT, TRANSFORMER_FILE
from modules.families.pixart.model import PixArt
from modules.families.pixart.spec import PIXART, is_alpha
from modules.formats.lazy_tensors import lazy_state
from modules.formats.safetensors_io import read_safetensors
from modules.sampling.denoising_loop import initial_noise, make_scheduler, run_denoising_loop
from modules.sampling.prediction import guided_prediction
from modules.system.devices import CPU
from tests.builders.configs import config_fixture, laid_over
from tests.builders.pipelines import family_fixture, load_tiny, noise_of
from tests.builders.pixart import SCHEDULER, TINY, pixart_pipeline, write_sigma_folder
from tests.builders.preference import draw_both, preference_config
from tests.builders.runs import assert_equal_tensors, run
from trainer.__main__ import main
from trainer.events import StepFinished, WarningRaised
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate

WIDE, ENDS = Size(96, 64), ("weight", "bias")


@pytest.fixture(scope="module")
def tiny_sigma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sigma_folder(tmp_path_factory.mktemp("models") / "tiny-sigma")


config = config_fixture("tiny_pixart", {"training": {"epochs": 1}})
family = family_fixture("tiny_pixart", PIXART.name)


# -- both models


@pytest.mark.parametrize("is_trained", [True, False])
def test_t5_gives_a_rollout_the_states_of_the_loss(tiny_pixart: Path, one_thread: None, is_trained: bool) -> None:
    """Rollouts read prompts one by one also if T5 was trained: the first ratio of DDPO was 1.4e-5 from 1."""
    family: PixArt = load_tiny(tiny_pixart, PIXART.name)
    family.parts["text_encoder"].module.requires_grad_(is_trained)
    prompts = ["a disc", "two squares in front of a wall", ""]
    with torch.no_grad():
        of_rollout = family.encode_prompts(prompts)
    of_loss = family.encode_prompts(prompts)
    assert of_loss.states_BLD.requires_grad is is_trained
    assert torch.equal(of_rollout.states_BLD, of_loss.states_BLD)


@torch.no_grad()
@pytest.mark.parametrize("name", ["tiny_pixart", "tiny_sigma"])
def test_a_wide_sample_is_that_of_diffusers_pipeline(name: str, request: pytest.FixtureRequest) -> None:
    """Alpha reads the height, the width and their ratio, sigma none of them."""
    folder = request.getfixturevalue(name)
    family: PixArt = load_tiny(folder, PIXART.name)
    assert is_alpha(family.denoiser.config) is (name == "tiny_pixart")
    text, empty = family.encode_prompts(["A Red disc"]), family.encode_prompts([""])
    noise, generator = initial_noise((1, *PIXART.latents.shape(96, 64)), seed=3, device=CPU)
    latents = run_denoising_loop(
        guided_prediction(family, text, empty, size=WIDE, guidance=3.0),
        make_scheduler("ddim", family.scheduler_config()),
        noise,
        num_steps=4,
        generator=generator,
        on_step=lambda: None,
    )
    theirs, _ = TINY.sample(pixart_pipeline(folder, family), "A Red disc", noise, 3.0)
    torch.testing.assert_close(latents, theirs, rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_sigma_reads_more_tokens_than_alpha(tiny_sigma: Path, family: PixArt) -> None:
    sigma: PixArt = load_tiny(tiny_sigma, PIXART.name)
    prompt = "a " * 400
    assert (family.encode_prompts([prompt]).lengths, sigma.encode_prompts([prompt]).lengths) == ((120,), (300,))
    theirs = TINY.text(pixart_pipeline(tiny_sigma, sigma), prompt)["states"]
    torch.testing.assert_close(sigma.encode_prompts([prompt]).states_BLD, theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_size_of_an_image_matters_to_alpha_alone(tiny_sigma: Path, family: PixArt) -> None:
    """The same patches at the same positions, in an image that is said to be twice as high."""
    resolution = family._sizes(noise_of(family, batch=2, seed=0))["resolution"]
    assert resolution is not None
    assert resolution.tolist() == [[64.0, 64.0]] * 2
    sigma: PixArt = load_tiny(tiny_sigma, PIXART.name)
    assert set(sigma._sizes(noise_of(sigma, batch=1, seed=0)).values()) == {None}


# -- what it learns


def test_no_loss_reaches_the_variance(family: PixArt) -> None:
    output = family.denoiser.proj_out.requires_grad_(True)
    noisy = noise_of(family, batch=1, seed=0)
    predicted = family.predict(noisy, torch.tensor([500.0]), family.encode_prompts(["a disc"]))
    assert predicted.shape == noisy.shape
    predicted.square().mean().backward()
    assert output.weight.grad is not None
    of_channels = output.weight.grad.reshape(2, 2, 8, -1).abs().sum(dim=(0, 1, 3))  # both sides of a patch, channels
    assert of_channels[:4].all()
    assert not of_channels[4:].any()


@pytest.mark.parametrize(
    "method", ["grpo", pytest.param("ddpo", marks=pytest.mark.full), pytest.param("spo", marks=pytest.mark.full)]
)
def test_methods_that_no_flow_model_has_learn_under_checkpointing(
    method: str, tiny_pixart: Path, tmp_path: Path
) -> None:
    """The same losses with and without it, and the predictions that were sampled; T5 is frozen."""
    drawn, found = draw_both(tmp_path / "drawn"), []
    for memory in ("off", "block"):
        parts = {"transformer": {"checkpointing": memory}, "text_encoder": {"train": False}}
        config = preference_config(tmp_path / memory, model=tiny_pixart, drawn=drawn, method=method, parts=parts)
        ran = run(config)
        assert ran.finished.outcome == "finished"
        assert not [warning for warning in ran.of(WarningRaised) if "predict the same" in warning.message]
        found.append([(step.loss, step.gradient_norm) for step in ran.of(StepFinished)])
    assert found[0] == found[1]
    assert all(norm for _, norm in found[0])


def test_prompts_are_read_in_lower_case_and_placeholders_as_they_are(family: PixArt) -> None:
    plain = family.token_ids("text_encoder", "a red disc")
    assert family.token_ids("text_encoder", "A RED Disc") == plain
    before = family.text_identity()
    family.add_embeddings({"<Zog>": {"text_encoder": torch.nn.Parameter(torch.ones(2, 24))}})
    ids = family.token_ids("text_encoder", "A <Zog> Disc")
    assert sum(number < 0 for number in ids) == 2
    assert family.text_identity() != before


def test_latents_are_not_clipped_like_pixels() -> None:
    """DDIM clips by default; the published configs, of DPM++, do not state otherwise."""
    assert "clip_sample" not in SCHEDULER
    assert not make_scheduler("ddim", SCHEDULER).config.clip_sample


# -- files


@pytest.mark.parametrize(("name", "rows"), [("tiny_pixart", 120), ("tiny_sigma", 300)])
def test_a_published_file_replaces_the_transformer(
    name: str, rows: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """It has the positions and the embedding of a missing prompt besides the weights, and is a .pth."""
    family: PixArt = load_tiny(request.getfixturevalue(name), PIXART.name)
    module, file = family.denoiser, tmp_path / "pixart.pth"
    original = to_original(TRANSFORMER_FILE.layout(dict(module.config)).slots, lazy_state(module.state_dict()))
    tensors = {name.removeprefix("model.diffusion_model."): t.make().contiguous() for name, t in original.items()}
    tensors |= {"pos_embed": torch.zeros(1, 4, 48), MISSING_PROMPT: torch.zeros(rows, 24)}
    torch.save({"state_dict": tensors}, file)
    kind = identify(file)
    assert (kind.kind, kind.family) == ("part", PIXART.name)
    assert kind.model == ("pixart_alpha" if rows == 120 else "pixart_sigma")
    read = load_part_file(file, PIXART, PIXART.denoiser, dict(module.config), torch.float32)
    assert_equal_tensors(read.state_dict(), module.state_dict())
    assert torch.equal(read.pos_embed.pos_embed, module.pos_embed.pos_embed)


@pytest.mark.parametrize(
    "names",
    [
        ("t_block.1.weight", "blocks.0.cross_attn.kv_linear.weight", "blocks.0.attn.qkv.weight"),  # Sana
        ("adaln_single.emb.timestep_embedder.linear_1.weight", "patchify_proj.weight"),  # LTX video
    ],
)
def test_models_with_similar_names_are_not_pixart(names: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "other.safetensors"
    save_file({name: torch.zeros(2, 2) for name in names}, file)
    assert identify(file).family != PIXART.name


def test_a_folder_with_the_name_of_the_former_class_loads(tiny_pixart: Path, tmp_path: Path) -> None:
    """The published configs name `Transformer2DModel`, which had PixArt's layers before diffusers 0.29."""
    copy = tmp_path / "model"
    shutil.copytree(tiny_pixart, copy)
    for file, old in ((copy / "transformer" / "config.json", None), (copy / "model_index.json", "transformer")):
        tree = json.loads(file.read_text())
        named = {"_class_name": "Transformer2DModel"} if old is None else {old: ["diffusers", "Transformer2DModel"]}
        file.write_text(json.dumps({**tree, **named}))
    kind = identify(copy)
    assert (kind.family, kind.model) == (PIXART.name, "pixart_alpha")
    assert isinstance(load_tiny(copy, PIXART.name), PixArt)


def test_both_published_transformers_have_their_layers() -> None:
    alpha, sigma = (
        {slot.original for slot in TRANSFORMER_FILE.layout(shipped_configs(name)["transformer"]).slots}
        for name in ("pixart_alpha", "pixart_sigma")
    )
    added = {f"{name}.mlp.{n}.{end}" for name in ("csize_embedder", "ar_embedder") for n in (0, 2) for end in ENDS}
    assert alpha - sigma == added
    assert sigma < alpha


def test_peft_loads_its_lora_and_the_table_says_so(config: Config, family: PixArt, tmp_path: Path) -> None:
    output = {"dtype": "float32", "format": "diffusers", "destination": str(tmp_path / "lora.safetensors")}
    trained = {"training": {"learning_rate": 0.01}, "parts": {"text_encoder": {"train": False}}}
    file = Path(run(laid_over(config, {**trained, "output": output})).finished.model_path)
    merged, kohya = tmp_path / "merged", tmp_path / "kohya.safetensors"
    assert main(["lora-merge", config.model.base_model, str(merged), str(file)]) == 0
    assert main(["convert", str(file), str(kohya), "--to", "kohya"]) == 0
    for form in (file, kohya):
        assert {x.program: x.loads for x in who_loads_file(form)[1]}["diffusers"] == "none"
    tensors, metadata = read_safetensors(file)
    layers = sorted({name.partition(".lora_")[0].removeprefix("transformer.") for name in tensors})
    rank = next(t.shape[0] for name, t in tensors.items() if ".lora_A." in name)
    ours: PixArt = load_tiny(merged, PIXART.name)
    noisy, timesteps = noise_of(family, batch=1, seed=5), torch.tensor([500.0])
    with torch.no_grad():
        text = family.encode_prompts(["a disc"])
        plain, expected = (f.predict(noisy, timesteps, text) for f in (family, ours))
        options = LoraConfig(r=rank, lora_alpha=config.adapter.alpha, target_modules=layers)
        changed = get_peft_model(family.denoiser, options)
        named = {f"base_model.model.{name.removeprefix('transformer.')}": tensor for name, tensor in tensors.items()}
        set_peft_model_state_dict(changed, named)
        theirs = family.predict(noisy, timesteps, text)
    assert not torch.allclose(theirs, plain, atol=1e-4)
    torch.testing.assert_close(theirs, expected, rtol=1e-4, atol=1e-5)
    assert metadata["modelspec.architecture"] == "pixart-alpha/lora"
    assert identify(file).model == "pixart_alpha"


def test_an_embedding_learns_on_t5(config: Config, images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    for caption in folder.glob("*.txt"):
        caption.write_text("a <zog> on white")
    words = [{"placeholder": "<zog>", "initial_text": "disc", "token_count": 2}]
    embedding = {
        "training": {"trains": "embedding", "learning_rate": 0.1},
        "embeddings": {"words": words},
        "concepts": [{"path": str(folder)}],
        "output": {"destination": str(tmp_path / "zog.safetensors")},
    }
    file = Path(run(laid_over(config, embedding)).finished.model_path)
    assert {name: tuple(t.shape) for name, t in read_safetensors(file)[0].items()} == {"t5xxl": (2, 24)}
    kind, loads = who_loads_file(file)
    assert (kind.kind, kind.model) == ("embedding", "pixart_alpha")
    assert {x.program: x.loads for x in loads} == {"ComfyUI": "unknown", "diffusers": "none"}
    continued = {"embeddings": {"words": [{**words[0], "file": str(file)}]}, "output": {"destination": ""}}
    assert [p.path for p in check(laid_over(config, {**embedding, **continued})).errors] == ["output.destination"]


# -- what the user sees


@pytest.mark.parametrize("name", ["prior", "transformer"])
def test_a_config_of_onetrainer_has_its_transformer_under_either_name(name: str) -> None:
    """Until version 8 it was the prior."""
    part = {"train": True, "weight_dtype": "INT_8", "learning_rate": 1e-4}
    tree = {"model_type": "PIXART_ALPHA", "training_method": "LORA", name: part, "text_encoder": {"train": False}}
    config = decode(tree).config
    assert (config.family.name, config.part("transformer").dtype) == (PIXART.name, "int8")
    assert config.part("transformer").learning_rate == 1e-4


@pytest.mark.parametrize(("name", "is_distilled"), [("PixArt-XL-2-1024-MS", False), ("PixArt-LCM-XL-2-1024-MS", True)])
def test_lcm_alone_is_distilled(config: Config, name: str, is_distilled: bool) -> None:
    problems = check(laid_over(config, {"model": {"base_model": f"PixArt-alpha/{name}"}})).problems
    assert any("seems to be a distilled model" in p.message for p in problems) is is_distilled


def test_a_lora_of_1024_px_fits_8_gb() -> None:
    parts = {
        "transformer": {"dtype": "bfloat16", "checkpointing": "block"},
        "text_encoder": {"train": False, "dtype": "nfloat4"},
        "vae": {"dtype": "bfloat16"},
    }
    tree = {
        "model": {"family": "pixart", "base_model": "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS"},
        "parts": parts,
        "training": {"precision": "bfloat16"},
        "data": {"resolution_px": [1024]},
    }
    estimate = memory_estimate(decode({"darkroom_version": 7, **tree}).config, {Size(1024, 1024): 10})
    assert estimate is not None
    assert 1.5 < estimate.peak.total_bytes / 1e9 < 7.0
