"""Qwen-Image 2.1 alone: its text, a place behind each prompt's own text, its autoencoder, its files, memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLQwenImage21
from safetensors.torch import load_file, save_file

from modules.config.codec import decode
from modules.data.buckets import Size
from modules.families.kinds.identify import identify
from modules.families.parts.single_file.checkpoint import load_part_file
from modules.families.qwen_image21.model import TEMPLATE, QwenImage21
from modules.families.qwen_image21.spec import MAX_TOKENS, QWEN_IMAGE21
from tests.builders.pipelines import family_fixture, load_tiny, noise_of
from tests.builders.qwen_image21 import TINY, transformer_of_diffusers
from trainer.preflight.run_budget import memory_estimate

PROMPTS = ["a disc", "a disc and a very long square"]


family = family_fixture("tiny_qwen_image21", QWEN_IMAGE21.name)


# -- text


@torch.no_grad()
def test_the_states_are_those_before_the_norm(family: QwenImage21) -> None:
    encoder = family.modules["text_encoder"]
    [states] = family.encode_prompts(["a disc"]).split()
    normed = encoder(torch.tensor([family.reader.ids("a disc")])).last_hidden_state[0, family.reader.dropped :]
    torch.testing.assert_close(encoder.norm(states), normed)
    assert not torch.allclose(states, normed, atol=0.1)
    assert not encoder.norm._forward_hooks, "the next reader gets the norm"


def test_only_the_message_of_the_system_is_cut_off(family: QwenImage21) -> None:
    tokens = family.reader.tokenizer
    kept = tokens.ids(TEMPLATE.before)[family.reader.dropped :]
    assert kept == tokens.ids("<|im_start|>user\n")
    [states] = family.encode_prompts([""]).split()
    assert len(states) == len(kept) + len(tokens.ids(" " + TEMPLATE.after))


def test_a_prompt_that_is_too_long_keeps_the_end_of_the_template(family: QwenImage21) -> None:
    end = family.reader.tokenizer.ids(TEMPLATE.after)
    ids = family.reader.ids("a" * (MAX_TOKENS + 9))
    assert len(ids) == family.reader.max_tokens
    assert ids[-len(end) :] == end


@torch.no_grad()
def test_a_batch_in_diffusers_pipeline_places_images_behind_the_longest_text(
    family: QwenImage21, tiny_qwen_image21: Path
) -> None:
    """So that a sample would depend on the other prompts of its batch: ours does not."""
    noise = noise_of(family, batch=1, seed=0)
    states, mask, slots = TINY.pipeline(tiny_qwen_image21, family).encode_prompt(PROMPTS)
    options = {
        "hidden_states": noise.flatten(2).transpose(1, 2).repeat(2, 1, 1),
        "timestep": torch.tensor([0.5, 0.5]),
        "img_shapes": [[(1, *noise.shape[-2:])]] * 2,
        "img_mask": torch.cat([slots, slots.new_ones(2, noise[0, 0].numel() // 4)], dim=1),
    }
    transformer = transformer_of_diffusers(family.denoiser)
    theirs = transformer(encoder_hidden_states=states, encoder_hidden_states_mask=mask, **options).sample
    theirs = theirs[:, states.shape[1] :].transpose(1, 2).unflatten(2, noise.shape[-2:])
    ours = family.predict(noise.repeat(2, 1, 1, 1), torch.tensor([500.0, 500.0]), family.encode_prompts(PROMPTS))
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-4)


# -- latents


@torch.no_grad()
@pytest.mark.parametrize("size", [(64, 64), (64, 96)])
def test_an_image_is_encoded_and_decoded_as_an_opaque_frame(family: QwenImage21, size: tuple[int, int]) -> None:
    theirs = AutoencoderKLQwenImage21.from_config(dict(family.vae.config)).eval()
    theirs.load_state_dict(family.vae.state_dict())
    image = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(1)) * 2 - 1
    frame = torch.cat([image, torch.ones(1, 1, *size)], dim=1).unsqueeze(2)
    latents = theirs.encode(frame).latent_dist.mode()
    torch.testing.assert_close(family.vae.encode(image).latent_dist.mode(), latents[:, :, 0], rtol=1e-5, atol=1e-5)
    decoded = theirs.decode(latents).sample[:, :3, 0]
    torch.testing.assert_close(family.vae.decode(latents[:, :, 0]).sample, decoded, rtol=1e-5, atol=1e-5)
    mean, std = (torch.tensor(family.vae.config[f"latents_{n}"])[None, :, None, None] for n in ("mean", "std"))
    torch.testing.assert_close(family.encode_images(image), (latents[:, :, 0] - mean) / std, rtol=1e-5, atol=1e-5)


# -- files


def test_a_checkpoint_of_comfyui_with_gates_in_one_matrix_is_read(family: QwenImage21, tmp_path: Path) -> None:
    state, file = family.denoiser.state_dict(), tmp_path / "qwen_image_2.1.safetensors"
    stored = dict(state)
    for gate in (name for name in state if ".gate_layer." in name):
        halves = [stored.pop(gate), stored.pop(gate.replace("gate_layer", "proj"))]
        stored[gate.replace("gate_layer", "gate_up")] = torch.cat(halves)
    save_file({f"model.diffusion_model.{name}": tensor for name, tensor in stored.items()}, file)
    assert (identify(file).kind, identify(file).family) == ("part", QWEN_IMAGE21.name)
    read = load_part_file(file, QWEN_IMAGE21, QWEN_IMAGE21.denoiser, dict(family.denoiser.config), torch.float32)
    assert all(torch.equal(tensor, state[name]) for name, tensor in read.state_dict().items())


def test_the_tokenizer_is_the_processors_and_the_vision_tower_is_not_loaded(
    family: QwenImage21, tiny_qwen_image21: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_qwen_image21, copy := tmp_path / "model")
    file = copy / "text_encoder" / "model.safetensors"
    kept = {n: t for n, t in load_file(file).items() if ".visual." not in n}
    save_file(kept, file, {"format": "pt"})
    again: QwenImage21 = load_tiny(copy, QWEN_IMAGE21.name)
    assert not (copy / "tokenizer").exists()
    assert again.reader.ids("a") == family.reader.ids("a")
    assert "visual" not in " ".join(dict(again.modules["text_encoder"].named_parameters()))


# -- memory


@pytest.mark.parametrize(("dtype", "least", "most"), [("bfloat16", 15.0, 24.0), ("int8", 8.0, 17.0)])
def test_the_published_model_needs_the_estimated_memory_at_1024_px(dtype: str, least: float, most: float) -> None:
    """Its weights alone are 14.2 GB in bfloat16; nothing is measured yet."""
    parts = {"transformer": {"dtype": dtype, "checkpointing": "block"}, "text_encoder": {"dtype": dtype}}
    tree = {"model": {"family": "qwen_image21", "base_model": "Qwen/Qwen-Image-2.1"}, "parts": parts}
    tree |= {"training": {"precision": "bfloat16"}, "data": {"resolution_px": [1024]}}
    estimate = memory_estimate(decode({"darkroom_version": 7, **tree}).config, {Size(1024, 1024): 10})
    assert estimate is not None
    assert least < estimate.peak.total_bytes / 1e9 < most
