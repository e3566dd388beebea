"""FLUX.2 alone: its shifts, latents, names and distilled models; what flow families share is in tests/training/flow."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu
from safetensors.torch import load_file, save_file

from modules.config.codec import decode
from modules.config.imports.ai_toolkit import tree_of_ai_toolkit
from modules.config.imports.kohya_settings import tree_of_kohya
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.flux2_klein.spec import FLUX2_KLEIN
from modules.families.kinds.identify import identify
from modules.families.parts.flux2.classes import CONVENTION
from modules.families.parts.flux2.forward import Flux2, text_ids
from modules.families.parts.lora_names import comfy_naming, kohya_naming
from modules.families.parts.packing import image_ids
from modules.families.parts.single_file.autoencoder import vae_slots_of
from modules.families.parts.single_file.checkpoint import load_part_file, load_vae_file
from modules.families.parts.single_file.models import shipped_configs
from modules.families.parts.single_file.moves import to_original
from modules.families.registry import files_of
from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.lazy_tensors import lazy_state
from modules.sampling.denoising_loop import scheduler_for
from modules.system.problem import Problem
from tests.builders.configs import config_fixture, laid_over
from tests.builders.flux2_klein import TINY, tiny_flux2_vae
from tests.builders.pipelines import family_fixture, noise_of
from tests.builders.runs import assert_equal_tensors, run
from trainer.events import SampleReady
from trainer.preflight import check
from trainer.preflight.denoiser import problems_of_distilled

config = config_fixture("tiny_flux2_klein")
family = family_fixture("tiny_flux2_klein", FLUX2_KLEIN.name)


# -- noise


@pytest.mark.parametrize("side_px", [512, 1024, 1536])
@pytest.mark.parametrize("steps", [4, 10, 50, 200])
def test_samples_have_the_shift_of_the_pipeline(side_px: int, steps: int) -> None:
    mu = compute_empirical_mu((side_px // 16) ** 2, steps)
    assert CONVENTION.sample_shift_at(side_px, side_px, steps) == pytest.approx(math.exp(mu), rel=1e-9)


def test_training_has_the_shift_of_the_checkpoint() -> None:
    """Not that of samples, which is 7.6 at 50 steps."""
    flow = CONVENTION.with_scheduler(shipped_configs("klein_4b")["scheduler"])
    assert flow.shift_at(1024, 1024) == pytest.approx(math.exp(1.15))
    assert flow.sample_shift_at(1024, 1024, 50) == pytest.approx(7.6, abs=0.1)


def test_a_sampler_has_the_shift_of_its_steps(family: Flux2) -> None:
    scheduler = scheduler_for(family, "euler", Size(1024, 1024))
    for steps in (4, 50):
        scheduler.set_timesteps(steps)
        assert scheduler.scheduler.shift == pytest.approx(math.exp(compute_empirical_mu(4096, steps)))


def test_a_scheduler_without_a_dynamic_shift_has_one_shift_for_all() -> None:
    flow = CONVENTION.with_scheduler({"use_dynamic_shifting": False, "shift": 3.0})
    assert (flow.shift_at(512, 512), flow.sample_shift_at(512, 512, 50)) == (3.0, 3.0)


# -- latents and tokens


@torch.no_grad()
def test_latents_are_normalised_in_patches_and_have_the_shape_of_masks(family: Flux2) -> None:
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    latents = family.encode_images(images)
    assert latents.shape == (1, 32, 8, 8) == (1, *FLUX2_KLEIN.latents.shape(64, 64))
    bn = family.vae.bn.eval()
    patches = torch.pixel_unshuffle(family.vae.encode(images).latent_dist.mode(), 2)
    torch.testing.assert_close(torch.pixel_unshuffle(latents, 2), bn(patches), rtol=1e-5, atol=1e-5)


def test_positions_have_four_axes_as_in_the_pipeline(family: Flux2, tiny_flux2_klein: Path) -> None:
    from diffusers import Flux2KleinPipeline

    latents, states = noise_of(family, batch=1, seed=1), torch.zeros(1, 5, 2)
    theirs = Flux2KleinPipeline._prepare_latent_ids(torch.pixel_unshuffle(latents, 2))[0]
    assert torch.nn.functional.pad(image_ids(latents), (0, 1)).tolist() == theirs.tolist()
    assert text_ids(states).tolist() == Flux2KleinPipeline._prepare_text_ids(states)[0].tolist()


# -- names


def test_native_names_have_their_dots() -> None:
    """musubi-tuner wrote img_attn_proj for klein (its issue 905), which ComfyUI ignores."""
    configs = shipped_configs("klein_4b")
    comfy, kohya = comfy_naming("klein_4b", configs), kohya_naming("klein_4b", configs)
    named = {
        "transformer_blocks.4.attn.to_out.0": "double_blocks.4.img_attn.proj",
        "transformer_blocks.4.attn.to_add_out": "double_blocks.4.txt_attn.proj",
        "transformer_blocks.4.ff_context.linear_in": "double_blocks.4.txt_mlp.0",
        "single_transformer_blocks.19.attn.to_qkv_mlp_proj": "single_blocks.19.linear1",
        "single_transformer_blocks.19.attn.to_out": "single_blocks.19.linear2",
    }
    for path, native in named.items():
        assert comfy("transformer", path) == f"diffusion_model.{native}"
        assert kohya("transformer", path) == f"lora_unet_{native.replace('.', '_')}"


# -- files


@pytest.mark.parametrize("form", ["diffusers", "original", "inside the halves"])
def test_the_vae_is_read_from_a_file(form: str, tmp_path: Path) -> None:
    """BFL's own file has the convolutions at the latents inside the encoder and the decoder."""
    vae, part = tiny_flux2_vae(), FLUX2_KLEIN.parts[-1]
    state = dict(vae.state_dict())
    if form != "diffusers":
        slots = vae_slots_of(part.model, dict(vae.config))
        state = {name: tensor.make().contiguous() for name, tensor in to_original(slots, lazy_state(state)).items()}
    if form == "inside the halves":
        halves = {"quant_conv": "encoder.quant_conv", "post_quant_conv": "decoder.post_quant_conv"}
        state = {f"{halves[k]}.{e}" if (k := n.partition(".")[0]) in halves else n: t for n, t in state.items()
                 for e in [n.rpartition(".")[2]]}  # fmt: skip
    file = tmp_path / "vae.safetensors"
    save_file(state, file)
    assert identify(file).facts["class"] == "AutoencoderKLFlux2"
    assert_equal_tensors(dict(load_vae_file(file, part.model, dict(vae.config), torch.float32).state_dict()),
                         dict(vae.state_dict()))  # fmt: skip


@pytest.mark.parametrize(("width", "model"), [(3072, "klein_4b"), (4096, "klein_9b")])
def test_a_transformer_alone_is_identified_by_its_width(width: int, model: str, tmp_path: Path) -> None:
    file = tmp_path / "flux-2.safetensors"
    name = "single_stream_modulation.lin.weight"
    save_file({name: torch.zeros(1, width), "double_blocks.0.img_attn.proj.weight": torch.zeros(1, 1)}, file)
    kind = files_of(FLUX2_KLEIN.name).checkpoint(read_checkpoint_header(file))
    assert kind is not None
    assert kind.model == model


# -- distilled models


def errors(config: Config, **model: Any) -> str:
    problems = check(laid_over(config, {"model": model})).problems
    return " ".join(str(p) for p in problems if p.severity == "error" and p.path == "model.base_model")


@pytest.fixture
def distilled(tiny_flux2_klein: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(tiny_flux2_klein, tmp_path / "model")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "is_distilled": True}))
    return folder


def test_klein_itself_is_refused_by_its_index(config: Config, distilled: Path) -> None:
    message = errors(config, base_model=str(distilled))
    assert "is_distilled in its model_index.json" in message
    assert "Train on FLUX.2 klein base" in message
    assert not errors(config)


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("black-forest-labs/FLUX.2-klein-4B", "error"),
        ("models/flux-2-klein-9b-fp8.safetensors", "error"),
        ("me/klein-4b-mine", "warning"),
        ("models/klein-9b-cats.safetensors", "warning"),
        ("black-forest-labs/FLUX.2-klein-base-4B", ""),
    ],
)
def test_a_name_alone_refuses_the_published_klein_only(config: Config, name: str, severity: str) -> None:
    found = [p.severity for p in problems_of_distilled(laid_over(config, {"model": {"base_model": name}}))]
    assert found == ([severity] if severity else [])


def test_a_folder_named_like_klein_is_what_its_index_says(config: Config, distilled: Path) -> None:
    """A fine-tune of the base is not refused for the folder that someone keeps it in."""
    named = distilled.rename(distilled.parent / "klein-4b-mine")
    assert "is_distilled in its model_index.json" in errors(config, base_model=str(named))
    index = json.loads((named / "model_index.json").read_text())
    (named / "model_index.json").write_text(json.dumps({**index, "is_distilled": False}))
    assert not list(problems_of_distilled(laid_over(config, {"model": {"base_model": str(named)}})))
    (named / "model_index.json").write_text(json.dumps({k: v for k, v in index.items() if k != "is_distilled"}))
    [doubtful] = problems_of_distilled(laid_over(config, {"model": {"base_model": str(named)}}))
    assert (doubtful.severity, "by its name" in doubtful.message) == ("warning", True)


def test_a_run_on_the_base_is_sampled_on_klein(config: Config, distilled: Path) -> None:
    """In its own steps without guidance, with the weights of klein and the LoRA of the base."""
    prompt = {"prompt": "a disc", "width_px": 32, "height_px": 32, "steps": 2, "guidance": 1.0}
    tree: dict[str, Any] = {"sampling": {"at_end": True, "prompts": [prompt]}, "training": {"epochs": 1}}
    tree["model"] = {"family": dict(TINY.settings)}
    weights = distilled / "transformer" / "diffusion_pytorch_model.safetensors"
    save_file({name: tensor * 1.5 for name, tensor in load_file(weights).items()}, weights)
    images = {}
    for name, model in (("base", ""), ("klein", str(distilled))):
        sampled = laid_over(config, {**tree, "sampling": {**tree["sampling"], "model": model}})
        ran = run(sampled)
        [sample] = ran.of(SampleReady)
        images[name] = Path(sample.path).read_bytes()
        images[f"{name}, trained"] = ran.weights
    assert images["base"] != images["klein"]
    assert_equal_tensors(images["base, trained"], images["klein, trained"])


@pytest.mark.parametrize("prefix", ["model.", "text_encoders.qwen3_4b.transformer.model."])
def test_the_text_encoder_is_read_from_comfyuis_file(prefix: str, family: Flux2, tmp_path: Path) -> None:
    module, file = family.modules["text_encoder"], tmp_path / "qwen_3_4b.safetensors"
    save_file({f"{prefix}{name}": tensor.clone() for name, tensor in module.state_dict().items()}, file)
    part = next(p for p in FLUX2_KLEIN.parts if p.role == "text_encoder")
    read = load_part_file(file, FLUX2_KLEIN, part, module.config.to_dict(), torch.float32)
    assert_equal_tensors(dict(read.state_dict()), dict(module.state_dict()))


def test_a_training_adapter_allows_klein_itself(config: Config, distilled: Path, tmp_path: Path) -> None:
    assert not errors(config, base_model=str(distilled), training_adapter=str(tmp_path / "adapter.safetensors"))


@pytest.mark.parametrize(
    ("name", "is_distilled"),
    [
        ("black-forest-labs/FLUX.2-klein-4B", True),
        ("black-forest-labs/FLUX.2-klein-base-4B", False),
        ("models/flux-2-klein-9b-fp8.safetensors", True),
        ("models/flux-2-klein-base-9b.safetensors", False),
        ("me/my-klein-style", False),
    ],
)
def test_klein_is_recognized_by_its_name(name: str, is_distilled: bool) -> None:
    assert FLUX2_KLEIN.distilled is not None
    assert FLUX2_KLEIN.distilled.is_named(name) == is_distilled


# -- files of other trainers


@pytest.mark.parametrize(
    ("base", "name"),
    [("black-forest-labs/FLUX.2-klein-base-9B", "flux2_klein"), ("black-forest-labs/FLUX.2-dev", "flux2")],
)
def test_a_file_of_onetrainer_is_of_klein_or_dev_by_its_base_model(base: str, name: str) -> None:
    loaded = decode(TINY.onetrainer["16 GB"].tree(base_model_name=base, text_encoder_sequence_length=256))
    assert not [p for p in loaded.problems if p.severity != "info"]
    assert loaded.config.unknown == {"onetrainer": {}}  # nothing of it is kept
    family, noise = loaded.config.model.family, loaded.config.training.noise
    assert (family.name, family.text_tokens) == (name, 256)
    assert (noise.distribution, noise.dynamic_shift) == ("logit_normal", True)
    assert loaded.config.part("transformer").dtype == "float8"


@pytest.mark.parametrize(
    ("arch", "name"), [("flux2", "flux2"), ("flux2_klein_4b", "flux2_klein"), ("flux2_klein_9b", "flux2_klein")]
)
def test_a_config_of_ai_toolkit_is_imported(arch: str, name: str) -> None:
    process = {"type": "diffusion_trainer", "model": {"arch": arch, "name_or_path": "owner/model"}, "network": {}}
    notes: list[Problem] = []
    raw = {"job": "extension", "config": {"name": "my", "process": [process]}}
    assert decode(tree_of_ai_toolkit(raw, notes)).config.model.family.name == name
    assert not [note for note in notes if note.path == "model.family"]


@pytest.mark.parametrize(
    ("version", "name"),
    [("klein-base-4b", "flux2_klein"), ("klein-9b", "flux2_klein"), ("dev", "flux2"), ("", "flux2")],
)
def test_settings_of_musubi_tuner_are_imported(version: str, name: str) -> None:
    given = {"network_module": "networks.lora_flux_2", "model_version": version, "network_dim": 4}
    notes: list[Problem] = []
    config = decode(tree_of_kohya(given, notes)).config
    assert config.model.family.name == name
    assert "model_version" not in str(config.unknown)
    assert not [note for note in notes if note.path == "model.family"]
