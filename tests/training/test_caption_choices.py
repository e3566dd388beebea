"""Captions in a run: dropout for one encoder alone, variations and their cache, weights of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.schema import Config
from modules.data.batch import Batch
from modules.families.parts.clip_text import weighted_states
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, run
from trainer.data.loader import Loader
from trainer.events import StepFinished

LONG = ", ".join(f"disc {number}" for number in range(24))  # two chunks
CAPTIONS = ["a, b, c, d, e, g, h", f"{LONG}, f", "one, two, three, four, five, six, seven"]


@pytest.fixture
def config(any_model: Path, tmp_path: Path) -> Config:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 3, captions=CAPTIONS)
    untrained = {key: {"train": False} for key in ("text_encoder", "text_encoder_2")}
    return small_config(
        tmp_path, model=any_model, images=images, parts=untrained, training={"batch_size": 3, "epochs": 4}
    )


def with_text(config: Config, changes: dict[str, Any] | None = None, **text: Any) -> Config:
    concept = config.concepts[0].model_dump(mode="json")
    return laid_over(config, {"concepts": [{**concept, "text": {**concept["text"], **text}, **(changes or {})}]})


def losses(ran: Ran) -> list[float | None]:
    assert ran.finished.outcome == "finished"
    return [s.loss for s in ran.of(StepFinished)]


def entries(config: Config) -> set[str]:
    return {p.stem for p in (Path(config.general.cache_dir) / "text").rglob("*.safetensors")}


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Every batch that is loaded while a run runs, its dry run included."""
    seen: list[Batch] = []
    plain = Loader._batch

    def watched(self: Loader, *arguments: Any) -> Batch:
        seen.append(plain(self, *arguments))
        return seen[-1]

    monkeypatch.setattr(Loader, "_batch", watched)
    return seen


# -- long prompts


@pytest.mark.daily(1)
def test_long_captions_are_cached_like_they_are_encoded(config: Config, batches: list[Batch]) -> None:
    cached = losses(run(config))
    assert batches[0].conditioning.tensors()["states"].shape[1] == 2 * 77  # type: ignore[union-attr]
    assert losses(run(laid_over(config, {"data": {"text_cache": False}}))) == cached


# -- dropout


def test_a_dropped_caption_is_the_empty_prompt(any_model: Path, config: Config, batches: list[Batch]) -> None:
    run(laid_over(config, {"data": {"caption_dropout": 1.0}}))
    family = load_tiny(any_model)
    with torch.no_grad():
        empty = family.encode_prompts([""]).tensors()
    assert {c for b in batches for c in b.captions} == {""}
    for batch in batches:
        tensors = batch.conditioning.tensors()  # type: ignore[union-attr]
        assert tensors.keys() == empty.keys()  # the pooled states too
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, empty[name].expand_as(tensor), rtol=0, atol=1e-6)


@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize(("first", "second"), [(1.0, 0.0), (0.0, 1.0)])
def test_one_encoder_alone_gets_the_empty_prompt(
    tiny_sdxl: Path, tmp_path: Path, batches: list[Batch], first: float, second: float, is_trained: bool
) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 3, captions=CAPTIONS)
    config = small_config(
        tmp_path,
        model=tiny_sdxl,
        images=images,
        parts={key: {"train": is_trained} for key in ("text_encoder", "text_encoder_2")},
        training={"batch_size": 3, "epochs": 1},
        data={"caption_dropout": first, "caption_dropout_2": second},
    )
    losses(run(config))
    family = load_tiny(tiny_sdxl)
    batch = batches[0]
    assert (batch.conditioning is None) == is_trained
    with torch.no_grad():
        found = batch.conditioning_for(family).tensors()
        captions, empty = (family.encode_prompts(p).tensors() for p in (batch.captions, ["", "", LONG]))
    width = family.towers["text_encoder"].encoder.config.hidden_size
    dropped, kept = (slice(None, width), slice(width, None)) if first else (slice(width, None), slice(None, width))
    close: dict[str, Any] = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(found["states"][:2, :, dropped], empty["states"][:2, :, dropped], **close)
    torch.testing.assert_close(found["states"][..., kept], captions["states"][..., kept], **close)
    pooled = empty["pooled"][:1].expand_as(found["pooled"]) if second else captions["pooled"]
    torch.testing.assert_close(found["pooled"], pooled, **close)
    assert len(entries(config)) == (0 if is_trained else len(CAPTIONS) + 1)  # dropout has no entries of its own


def test_dropout_of_the_second_is_ignored_without_one(tiny_sd: Path, tmp_path: Path, batches: list[Batch]) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)])
    run(small_config(tmp_path, model=tiny_sd, images=images, data={"caption_dropout_2": 1.0}))
    assert all(b.captions == ("picture number 0",) and not b.empty_for for b in batches)


# -- variations


def captions_by_epoch(batches: Sequence[Batch]) -> dict[int, list[str]]:
    return {b.epoch: [t for _, t in sorted(zip(b.sample_indices, b.captions, strict=True))] for b in batches}


@pytest.mark.daily(1)
def test_variations_are_cached_and_used_in_turn(config: Config, batches: list[Batch]) -> None:
    shuffled = with_text(config, {"text_variations": 2}, shuffle_tags=True, keep_tags_count=0)
    losses(run(shuffled))
    by_epoch = captions_by_epoch(batches)
    assert by_epoch[0] == by_epoch[2] != by_epoch[1] == by_epoch[3]
    assert [sorted(t.split(", ")) for t in by_epoch[0]] == [sorted(c.split(", ")) for c in CAPTIONS]
    assert len(entries(shuffled)) == 1 + 2 * len(CAPTIONS)
    known = entries(shuffled)
    losses(run(with_text(config, {"text_variations": 3}, shuffle_tags=True, keep_tags_count=0)))
    assert len(entries(shuffled)) == 1 + 3 * len(CAPTIONS)  # one more of each; none is built again
    assert known < entries(shuffled)


def test_fractional_repeats_leave_no_variation_unused(config: Config, batches: list[Batch]) -> None:
    """Each image is used in two of the four epochs."""
    halved = with_text(config, {"text_variations": 2, "repeats": 0.5}, shuffle_tags=True, keep_tags_count=0)
    losses(run(halved))
    assert len({text for batch in batches for text in batch.captions}) == len(entries(halved)) - 1 == 2 * len(CAPTIONS)


@pytest.mark.parametrize("changes", [{"data": {"text_cache": False}}, {"parts": {"text_encoder": {"train": True}}}])
def test_captions_that_are_not_cached_are_drawn_anew(
    config: Config, batches: list[Batch], changes: dict[str, Any]
) -> None:
    losses(run(laid_over(with_text(config, shuffle_tags=True, keep_tags_count=0), changes)))
    assert len({tuple(texts) for texts in captions_by_epoch(batches).values()}) == 4
    assert not entries(config)


def test_lines_are_used_in_turn(config: Config, batches: list[Batch], tmp_path: Path) -> None:
    for index in range(3):
        (tmp_path / "images" / f"{index:03d}.txt").write_text("a\nb\nc\n")
    losses(run(with_text(config, choice="in_turn")))
    assert captions_by_epoch(batches) == {epoch: [line] * 3 for epoch, line in enumerate("abca")}


@pytest.mark.daily(1)
def test_an_image_that_is_added_changes_no_cached_variation(config: Config, tmp_path: Path) -> None:
    shuffled = with_text(config, {"text_variations": 2}, shuffle_tags=True, keep_tags_count=0)
    run(shuffled)
    known = entries(shuffled)
    draw_folder(tmp_path / "more", sizes=[(64, 64)], captions=["p, q, r, s, t, u, v"])
    for suffix in (".png", ".txt"):
        (tmp_path / "more" / f"000{suffix}").rename(tmp_path / "images" / f"!first{suffix}")
    run(shuffled)
    assert known < entries(shuffled)
    assert len(entries(shuffled) - known) == 2


# -- weights


def test_weights_are_off_by_default(any_model: Path) -> None:
    family = load_tiny(any_model)
    weighted = load_tiny(any_model, prompt_weighting=True)
    with torch.no_grad():
        plain = family.encode_prompts([LONG, "a disc"]).tensors()["states"]
        assert torch.equal(weighted.encode_prompts([LONG, "a disc"]).tensors()["states"], plain)
        brackets = family.encode_prompts(["a (disc:1.3)"]).tensors()["states"]
        assert not torch.equal(weighted.encode_prompts(["a (disc:1.3)"]).tensors()["states"], brackets)
    assert family.text_identity() != weighted.text_identity()  # other entries of the cache


def test_weighted_states_are_scaled_to_their_mean(any_model: Path) -> None:
    family = load_tiny(any_model, prompt_weighting=True)
    with torch.no_grad():
        plain = family.encode_prompts(["a red disc"]).tensors()
        found = family.encode_prompts(["a (red:1.3) disc"]).tensors()
    weights = torch.ones(77)
    weights[2] = 1.3  # start, "a", "red"
    parts = [t.encoder.config.hidden_size for t in family.towers.values()]
    for own, expected in zip(found["states"].split(parts, -1), plain["states"].split(parts, -1), strict=True):
        raw = expected * weights[None, :, None]
        is_scaled = min(expected.mean().abs(), raw.mean().abs()) > 1e-3 * expected.std()
        scale = expected.mean() / raw.mean() if is_scaled else 1.0
        torch.testing.assert_close(own, raw * scale, rtol=1e-4, atol=1e-5)
    if "pooled" in plain:
        assert torch.equal(found["pooled"], plain["pooled"])


def test_chunks_without_weights_do_not_change() -> None:
    states_NLD = torch.randn(2, 77, 4, generator=torch.Generator().manual_seed(0)) - 0.2
    weights_NL = torch.ones(2, 77)
    weights_NL[1, 3] = 0.5
    found_NLD = weighted_states(states_NLD, weights_NL)
    assert torch.equal(found_NLD[0], states_NLD[0])
    assert found_NLD[1].mean().item() == pytest.approx(states_NLD[1].mean().item(), rel=1e-4)


def test_states_of_mean_zero_are_not_scaled() -> None:
    """A layer norm without a bias gives such states; divided by their mean they would be infinite."""
    states_NLD = torch.tensor([[[1.0, -1.0], [2.0, -2.0]]], requires_grad=True)
    found_NLD = weighted_states(states_NLD, torch.tensor([[1.0, 1.5]]))
    assert found_NLD.tolist() == [[[1.0, -1.0], [3.0, -3.0]]]
    found_NLD.square().sum().backward()
    assert states_NLD.grad is not None
    assert states_NLD.grad.isfinite().all()


@pytest.mark.full
def test_weights_change_a_run_and_its_samples(config: Config, tmp_path: Path) -> None:
    (tmp_path / "images" / "000.txt").write_text("a (red:1.5) disc")
    plain = losses(run(config))
    known = entries(config)
    weighted = laid_over(config, {"model": {"family": {"prompt_weighting": True}}})
    assert losses(run(weighted)) != plain
    assert not known & {e for e in entries(weighted) - known}
    assert len(entries(weighted)) == 2 * len(known)
    assert losses(run(laid_over(weighted, {"data": {"text_cache": False}}))) == losses(run(weighted))
