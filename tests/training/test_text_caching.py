"""Text caching is decided for each caption: some of a batch from the cache, the others encoded in the step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
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
from trainer.commands import CommandDesk, Stop
from trainer.data.encoders import Encoders
from trainer.data.sources import ConditioningByCaption, EncodedConditioning
from trainer.events import CacheProgress, Event, StepFinished
from trainer.launch import RunRequest
from trainer.run import data
from trainer.run.execute import execute_guarded

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


@pytest.mark.full
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


def in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode captions in batches, as on a GPU."""
    monkeypatch.setattr(Encoders, "captions_at_once", 4)


def test_states_of_a_caption_depend_on_no_other_one(any_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is encoded with it, and in which place: so a cache has the same bits wherever its build was stopped."""
    in_batches(monkeypatch)
    family = load_tiny(any_model)
    captions = [f"a disc, {'red ' * number}" for number in range(9)] + [LONG]
    expected = dict(zip(captions, Encoders(family, CPU, nullcontext).captions(captions), strict=True))
    for some in (captions[::-1], captions[2:5], captions[7:], captions[3:4]):
        for caption, found in zip(some, Encoders(family, CPU, nullcontext).captions(some), strict=True):
            with torch.no_grad():
                alone = family.encode_prompts([caption]).tensors()
            for name, tensor in found.tensors().items():
                assert torch.equal(tensor, expected[caption].tensors()[name])
                torch.testing.assert_close(tensor, alone[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("after", [2, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 3, 4, 5, 6))])
def test_a_cache_is_the_same_after_a_stop(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, after: int
) -> None:
    in_batches(monkeypatch)
    whole = laid_over(config, {"general": {"cache_dir": str(tmp_path / "whole")}})
    desk = CommandDesk()

    def stop_in_time(event: Event) -> None:
        if isinstance(event, CacheProgress) and event.what == "captions" and event.done == after:
            desk.put(Stop())

    execute_guarded(RunRequest(config, kind="cache", in_window=False), emit=stop_in_time, desk=desk)
    num_kept = len(entries(config))
    for each in (config, whole):
        execute_guarded(RunRequest(each, kind="cache", in_window=False), emit=lambda _: None, desk=CommandDesk())
    assert num_kept >= after
    assert entries(config) == entries(whole)
    assert len(entries(whole)) == 1 + len(CAPTIONS)


@pytest.mark.parametrize("is_cacheable", [lambda _: True, lambda _: False, rule])
def test_each_caption_keeps_its_place(any_model: Path, is_cacheable: Callable[[str], bool]) -> None:
    family = load_tiny(any_model)
    fixed = EncodedConditioning(family, lambda some: [family.encode_prompts([c]) for c in some], CPU, torch.float32)
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
