"""Text caching is decided for each caption: some of a batch from the cache, the others encoded in the step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.schema import Config
from modules.data.conditioning import PartialConditioning, complete_conditioning
from modules.system.devices import CPU
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, run
from trainer.data.sources import ConditioningByCaption, EncodedConditioning
from trainer.events import StepFinished
from trainer.run import data

LONG = "a disc on a gradient, " * 20  # more than one chunk of 75 tokens
CAPTIONS = ["a disc", "<new> a disc", LONG, f"<new> {LONG}", "another disc"]
TOLERANCE = 1e-6  # fp32: the length of a batch encoded at once changes the last bits


def rule(caption: str, **_: Any) -> bool:
    """A toy rule, in place of that of a trained token."""
    return "<new>" not in caption


@pytest.fixture
def config(any_model: Path, tmp_path: Path) -> Config:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 5, captions=CAPTIONS)
    untrained = {key: {"train": False} for key in ("text_encoder", "text_encoder_2")}
    return small_config(
        tmp_path, model=any_model, images=images, parts=untrained, training={"batch_size": 3, "epochs": 2}
    )


def entries(config: Config) -> dict[str, bytes]:
    """The cached text states of a run, by key."""
    folder = Path(config.general.cache_dir) / "text"
    return {p.stem: p.read_bytes() for p in folder.rglob("*.safetensors")}


def losses(ran: Ran) -> list[float | None]:
    assert ran.finished.outcome == "finished"
    return [s.loss for s in ran.of(StepFinished)]


@pytest.mark.daily(1)
def test_a_batch_of_both_kinds_trains_like_an_uncached_run(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uncached = losses(run(laid_over(config, {"data": {"text_cache": False}})))
    assert not entries(config)
    all_cached = laid_over(config, {"general": {"cache_dir": str(tmp_path / "all")}})
    run(all_cached)

    delivered: list[object] = []
    plain = ConditioningByCaption.deliver

    def watched(self: ConditioningByCaption, captions: Any, prepared: Any = None) -> Any:
        delivered.append(plain(self, captions, prepared))
        return delivered[-1]

    monkeypatch.setattr(data, "caption_is_cacheable", rule)
    monkeypatch.setattr(ConditioningByCaption, "deliver", watched)
    mixed = losses(run(config))
    assert any(isinstance(d, PartialConditioning) for d in delivered)
    assert mixed == pytest.approx(uncached, rel=TOLERANCE)
    # The empty caption and those without the token; each as in a run in which every caption is cached.
    assert len(entries(config)) == 1 + sum(map(rule, CAPTIONS))
    assert entries(config).items() < entries(all_cached).items()
    assert len(entries(all_cached)) == 1 + len(CAPTIONS)


@pytest.mark.parametrize("is_cacheable", [lambda _: True, lambda _: False, rule])
def test_each_caption_keeps_its_place(any_model: Path, is_cacheable: Callable[[str], bool]) -> None:
    family = load_tiny(any_model)
    fixed = EncodedConditioning(family, lambda c: family.encode_prompts([c]), CPU, torch.float32)
    delivered = ConditioningByCaption(is_cacheable, fixed).deliver(CAPTIONS)
    with torch.no_grad():
        expected = family.encode_prompts(CAPTIONS).tensors()
        found = complete_conditioning(delivered, CAPTIONS, family).tensors()
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-5)
    assert isinstance(delivered, PartialConditioning) == (is_cacheable is rule)


def test_gradients_reach_what_encodes_the_captions_in_the_step(any_model: Path) -> None:
    family = load_tiny(any_model)
    encoder = next(p.module for p in family.parts.values() if p.spec.role == "text_encoder")
    table = encoder.get_input_embeddings().weight.requires_grad_()
    with torch.no_grad():
        ready = [None if "<new>" in c else family.encode_prompts([c]) for c in CAPTIONS]
        empty = family.encode_prompts([""])
    states = PartialConditioning(ready, empty).complete(CAPTIONS, family).tensors()["states"]
    states[[i for i, c in enumerate(CAPTIONS) if rule(c)]].sum().backward(retain_graph=True)
    assert table.grad is None or not table.grad.any()
    states[[i for i, c in enumerate(CAPTIONS) if not rule(c)]].square().sum().backward()
    assert table.grad is not None
    assert table.grad.any()
