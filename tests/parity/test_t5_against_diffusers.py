"""The states of a T5 are those that diffusers' pipelines give their denoisers, for each way to read padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import ChromaPipeline, FluxPipeline, PixArtSigmaPipeline, StableDiffusion3Pipeline
from safetensors.torch import load_file
from torch import nn
from transformers import T5EncoderModel
from transformers import T5Tokenizer as TheirTokenizer

from modules.adapters.protocol import target_layers
from modules.families.parts.forwards import Forwards
from modules.families.parts.part_classes import T5_TEXT
from modules.families.parts.single_file.checkpoint import build_part
from modules.families.parts.single_file.write import file_state
from modules.families.parts.t5_layers import t5_shapes, t5_targets
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.t5_tokens import load_t5_tokenizer
from modules.families.parts.token_rows import add_embeddings
from modules.families.protocol import Part, PartMemory
from modules.families.spec import PartSpec
from modules.formats.lazy_tensors import lazy_state
from modules.settings.layer_filter import EVERYTHING
from modules.system.devices import CPU, Device
from tests.builders.runs import assert_equal_tensors
from tests.builders.t5 import tiny_t5, write_t5_tokenizer

PROMPTS = ["", "a red disc", "a disc of " * 12]  # the last one is longer than what is read
MAX_TOKENS = 20

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    write_t5_tokenizer(folder / "tokenizer")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = tiny_t5()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    encoder.save_pretrained(folder / "encoder")
    return folder


@pytest.fixture
def encoder(folder: Path) -> Any:
    return T5EncoderModel.from_pretrained(folder / "encoder").eval().requires_grad_(False)


def tower(folder: Path, encoder: Any, *, masks_padding: bool, kept_padding: int | None) -> T5Tower:
    return T5Tower(encoder, load_t5_tokenizer(folder / "tokenizer"), MAX_TOKENS, masks_padding, kept_padding)


def their_tokenizer(folder: Path) -> Any:
    return TheirTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)


def test_attended_padding_is_that_of_flux_and_sd3(folder: Path, encoder: Any) -> None:
    tokenizer = their_tokenizer(folder)
    flux = FluxPipeline(None, None, None, None, encoder, tokenizer, None)
    sd3 = StableDiffusion3Pipeline(None, None, None, None, None, None, None, encoder, tokenizer)
    states = tower(folder, encoder, masks_padding=False, kept_padding=None).encode(encoder, PROMPTS)
    for pipe in (flux, sd3):
        theirs = pipe._get_t5_prompt_embeds(PROMPTS, max_sequence_length=MAX_TOKENS, device="cpu", dtype=torch.float32)
        torch.testing.assert_close(torch.stack(states), theirs, rtol=1e-5, atol=1e-5)


def test_masked_padding_is_that_of_chroma_with_one_visible_token(folder: Path, encoder: Any) -> None:
    pipe = ChromaPipeline(None, None, encoder, their_tokenizer(folder), None)
    theirs, mask = pipe._get_t5_prompt_embeds(PROMPTS, max_sequence_length=MAX_TOKENS, device="cpu")
    states = tower(folder, encoder, masks_padding=True, kept_padding=1).encode(encoder, PROMPTS)
    assert [len(s) for s in states] == mask.sum(dim=1).tolist() == [2, 5, MAX_TOKENS]
    for ours, expected in zip(states, theirs, strict=True):
        torch.testing.assert_close(ours, expected[: len(ours)], rtol=1e-5, atol=1e-5)


def test_masked_padding_is_that_of_pixart_with_none_visible(folder: Path, encoder: Any) -> None:
    pipe = PixArtSigmaPipeline(their_tokenizer(folder), encoder, None, None, None)
    theirs, mask, *_ = pipe.encode_prompt(
        PROMPTS, do_classifier_free_guidance=False, max_sequence_length=MAX_TOKENS, device="cpu"
    )
    states = tower(folder, encoder, masks_padding=True, kept_padding=0).encode(encoder, PROMPTS)
    assert [len(s) for s in states] == mask.sum(dim=1).tolist()
    for ours, expected in zip(states, theirs, strict=True):
        torch.testing.assert_close(ours, expected[: len(ours)], rtol=1e-5, atol=1e-5)


def test_a_file_has_the_vocabulary_once(folder: Path, encoder: Any) -> None:
    stored = load_file(folder / "encoder" / "model.safetensors")
    assert file_state(T5_TEXT, lazy_state(encoder.state_dict())).keys() == stored.keys()
    built = build_part(T5EncoderModel, encoder.config.to_dict(), lazy_state(stored), torch.float32, where="a file")
    assert built.shared.weight is built.encoder.embed_tokens.weight
    assert_equal_tensors(built.state_dict(), encoder.state_dict())


def test_its_layers_are_known_by_name_and_shape(encoder: Any) -> None:
    shapes = dict(t5_shapes(encoder.config.to_dict()))
    linear = {n: m for n, m in encoder.named_modules() if isinstance(m, nn.Linear)}
    assert shapes == {name: tuple(layer.weight.shape) for name, layer in linear.items()}
    assert target_layers(encoder, "text_encoder", layers=EVERYTHING, reaches=lambda name: True) == list(linear)
    names = [t.kohya_name for t in t5_targets("text_encoder_2", encoder.config.to_dict(), "lora_te3_")]
    assert names[0] == "lora_te3_encoder_block_0_layer_0_SelfAttention_q"


def test_an_embedding_acts_like_the_tokens_it_started_from(folder: Path, encoder: Any) -> None:
    plain = tower(folder, encoder, masks_padding=True, kept_padding=1)
    [expected] = plain.encode(encoder, ["a disc red"])
    rows = nn.Parameter(encoder.shared.weight[plain.tokenizer.ids("disc red")].clone())
    with_word = plain.with_embeddings(add_embeddings({"t5": encoder}, {"<zog>": {"t5": rows}})["t5"])
    [found] = with_word.encode(encoder, ["a <zog>"])
    assert torch.equal(found, expected)
    assert with_word.embedding_states(encoder, "<zog>").shape == (2, 24)
    assert not [name for name in encoder.state_dict() if "new_rows" in name]
    found.sum().backward()
    assert rows.grad is not None


def test_a_trained_encoder_has_no_dropout(folder: Path, encoder: Any) -> None:
    one = tower(folder, encoder, masks_padding=True, kept_padding=1)
    [before] = one.encode(encoder, ["a red disc"])
    encoder.train()
    [after] = one.encode(encoder, ["a red disc"])
    assert torch.equal(before, after)


def gradients(encoder: Any, one: T5Tower, memory: PartMemory) -> dict[str, torch.Tensor]:
    encoder.requires_grad_(True)
    encoder.zero_grad()
    forwards = Forwards()
    part = Part(PartSpec("text_encoder", "T5", "text_encoder", T5_TEXT), encoder, lambda name: True)
    forwards.set_memory({"t5": part}, {"t5": memory}, train_device=CPU, temp_device=Device("cpu:1"))
    sum(s.square().mean() for s in one.encode(forwards.of("t5", encoder), PROMPTS)).backward()  # type: ignore[union-attr]
    return {n: p.grad.clone() for n, p in encoder.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "memory",
    [PartMemory("block"), PartMemory("block", offload_activations=True), PartMemory("block", offload_fraction=0.5)],
    ids=["block", "activations", "layers"],
)
def test_gradients_are_those_of_a_plain_pass(folder: Path, encoder: Any, memory: PartMemory) -> None:
    one = tower(folder, encoder, masks_padding=True, kept_padding=1)
    plain = gradients(encoder, one, PartMemory())
    assert plain.keys() == dict(encoder.named_parameters()).keys()
    assert_equal_tensors(gradients(encoder, one, memory), plain)
