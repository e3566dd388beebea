"""New rows of a text encoder's token embedding: lookup, gradients, chunks, and what never moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modules.data.captions.sources import contains_any, split_at_placeholders
from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.families.parts.part_classes import CLIP_CHUNK_TOKENS
from modules.families.parts.token_rows import extend_embedding, start_rows, typical_norm
from modules.families.protocol import PartMemory
from modules.system.devices import CPU
from tests.builders.pipelines import load_tiny

WORD = "<zog>"


def with_word(folder: Path, *, tokens: int = 2, **options: Any) -> tuple[Any, dict[str, nn.Parameter]]:
    """A tiny model with one embedding, and its rows by encoder, which are the vectors of "cat"."""
    family = load_tiny(folder, **options)
    rows = {}
    for name in family.spec.text.embedding_tensors:
        vocabulary = family.towers[name].encoder.get_input_embeddings().weight
        ids = family.token_ids(name, "cat")
        rows[name] = nn.Parameter(start_rows(vocabulary, ids, count=tokens, filler=ids[0], how="tokens", seed=0))
    family.add_embeddings({WORD: rows})
    return family, rows


def states(family: Any, prompt: str) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        found: dict[str, torch.Tensor] = family.encode_prompts([prompt]).tensors()
    return found


@pytest.mark.parametrize("weighting", [False, True])
def test_rows_act_like_the_tokens_they_started_from(any_model: Path, weighting: bool) -> None:
    family, rows = with_word(any_model, prompt_weighting=weighting)
    found, expected = states(family, f"a ({WORD}:1.3), red"), states(family, "a (cat cat:1.3), red")
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)
    with torch.no_grad():
        for parameter in rows.values():
            parameter.add_(1.0)
    assert all(not torch.equal(states(family, f"a {WORD}")[n], t) for n, t in states(family, "a cat cat").items())
    plain = load_tiny(any_model, prompt_weighting=weighting)
    for name, tensor in states(plain, "a cat").items():
        assert torch.equal(states(family, "a cat")[name], tensor)


def test_the_pooled_state_of_encoders_with_the_end_token_2(tiny_sdxl: Path) -> None:
    """Those take it from the largest id, which must stay that of the end token."""
    family, _ = with_word(tiny_sdxl)
    encoder = family.towers["text_encoder_2"].encoder
    inner = encoder.text_model
    inner.eos_token_id = inner.config.eos_token_id = 2
    assert torch.equal(states(family, f"a {WORD} on grass")["pooled"], states(family, "a cat cat on grass")["pooled"])


@pytest.mark.parametrize("mode", ["off", "block", "whole"])
@pytest.mark.parametrize("autocast", [False, True])
def test_only_rows_get_a_gradient_through_a_frozen_encoder(any_model: Path, mode: Any, autocast: bool) -> None:
    family, rows = with_word(any_model)
    family.set_memory({n: PartMemory(mode) for n in family.parts}, train_device=CPU, temp_device=CPU)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        conditioning = family.encode_prompts([f"a {WORD}", "a dog"])
        loss = sum(t.float().square().mean() for t in conditioning.tensors().values())
    loss.backward()
    for parameter in rows.values():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum(dim=1).min() > 0
    own = {id(p) for p in rows.values()}
    for part in family.parts.values():
        assert all(p.grad is None for p in part.module.parameters() if id(p) not in own)


def test_rows_are_no_tensors_of_the_model(any_model: Path) -> None:
    family, _ = with_word(any_model)
    plain = load_tiny(any_model)
    for name, part in plain.parts.items():
        extended_state = family.parts[name].module.state_dict()
        assert extended_state.keys() == part.module.state_dict().keys()
    assert [n for n, _ in family.parts["text_encoder"].module.named_parameters() if "new_rows" in n]


def test_a_second_embedding_has_rows_of_its_own(tiny_sd: Path) -> None:
    family = load_tiny(tiny_sd)
    rows = [nn.Parameter(torch.full((n, 24), float(n))) for n in (2, 1)]
    family.add_embeddings({WORD: {"text_encoder": rows[0]}, "<two>": {"text_encoder": rows[1]}})
    tokenizer = family.towers["text_encoder"].tokenizer
    assert tokenizer.ids(f"{WORD} <two>{WORD}") == [-1, -2, -3, -1, -2]
    vectors = extend_embedding(family.towers["text_encoder"].encoder)(torch.tensor([-1, -2, -3]))
    assert vectors[:, 0].tolist() == [2.0, 2.0, 1.0]


def test_a_word_is_not_divided_between_chunks() -> None:
    plain = load_clip_tokenizer(None)
    tokenizer = plain.with_embeddings({WORD: (-1, -2, -3), "<long>": tuple(range(-4, -84, -1))})
    prompt = "cat " * (CLIP_CHUNK_TOKENS - 2)
    first, second = tokenizer.chunks(f"{prompt}{WORD} dog")
    cat = plain.ids("cat")[0]
    assert first[1 : CLIP_CHUNK_TOKENS + 2] == [cat] * (CLIP_CHUNK_TOKENS - 2) + [
        plain.end_id,
        plain.pad_id,
        plain.pad_id,
    ]
    assert second[1:5] == [-1, -2, -3, *plain.ids("dog")]
    weights = tokenizer.weighted_chunks(f"{prompt}({WORD}:1.5) dog")
    assert [ids for ids, _ in weights] == [first, second]
    assert weights[1][1][:5] == [1.0, 1.5, 1.5, 1.5, 1.0]
    assert len(tokenizer.chunks("<long>")) == 2  # more than a chunk: divided
    assert tokenizer.count(f"a {WORD}") == 4
    assert plain.identity() != tokenizer.identity()
    assert tokenizer.chunks("a cat") == plain.chunks("a cat")


def test_placeholders_are_words_of_their_own_in_any_case() -> None:
    assert list(split_at_placeholders("a ZOG, zogs and <zog>", ["zog", "<zog>"])) == [
        ("a ", None),
        ("ZOG", "zog"),
        (", zogs and ", None),
        ("<zog>", "<zog>"),
    ]
    assert contains_any("A Zog!", ["zog"])
    assert not contains_any("zogging", ["zog"])
    assert not contains_any("a zog", [])


def test_the_ways_to_start() -> None:
    vocabulary = torch.arange(12.0).reshape(4, 3)
    start = {"count": 3, "filler": 0, "seed": 1}
    assert torch.equal(start_rows(vocabulary, [1, 2], how="tokens", **start), vocabulary[[1, 2, 0]])
    assert torch.equal(start_rows(vocabulary, [1, 2], how="mean", **start), vocabulary[1:3].mean(0).repeat(3, 1))
    drawn = start_rows(vocabulary, [1, 2], how="random", **start)
    assert drawn.norm(dim=-1).tolist() == pytest.approx([typical_norm(vocabulary)] * 3)
    assert torch.equal(drawn, start_rows(vocabulary, [], how="tokens", **start))


def test_rows_at_the_output_replace_the_states(any_model: Path) -> None:
    family, rows = with_word(any_model)
    prompt = f"a {WORD} on grass"
    before = states(family, prompt)
    own = {n: nn.Parameter(family.embedding_states(n, WORD) + 1.0) for n in rows}
    for name, rows_ND in own.items():
        family.add_outputs(name, WORD, rows_ND)
    family.parts["text_encoder"].module.requires_grad_(False)
    own["text_encoder"].requires_grad_(True)
    found = family.encode_prompts([prompt]).tensors()
    width = family.towers["text_encoder"].encoder.config.hidden_size
    for name, tensor in found.items():
        if tensor.dim() < 3:  # the pooled state
            assert torch.equal(tensor, before[name])
            continue
        assert torch.equal(tensor[0, 2:4, :width], own["text_encoder"])
        assert torch.equal(tensor[0, [0, 1, 4, 5]], before[name][0, [0, 1, 4, 5]])
        tensor.sum().backward()
    assert own["text_encoder"].grad is not None
    assert not [n for n in family.parts["text_encoder"].module.state_dict() if "rows" in n]
