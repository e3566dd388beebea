"""Large text encoders and the denoiser of a run are never in memory together, and change nothing of a run by that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modules.config.schema import Config
from modules.memory.placement import DROPPED, ParkedPartError, Placement, drop_weights, refill_weights
from modules.quantization.linear import quantize_layers
from modules.quantization.registry import FORMATS, ChosenFormat
from modules.settings.layer_filter import EVERYTHING
from modules.system.devices import CPU
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, assert_equal_tensors, losses, run
from trainer import phases
from trainer.commands import Command, Stop
from trainer.events import CacheProgress, Event, SampleReady
from trainer.run import model
from trainer.run.reading import PartReader

LARGE, DENOISER = "text_encoder_2", "transformer"
PROMPT = {"prompt": "a disc", "width_px": 32, "height_px": 32, "steps": 1}
CHANGING = {**PROMPT, "prompt": "a {red|green|blue|grey|pink} disc", "random_seed": True}


@pytest.fixture(scope="module")
def config(tiny_flux: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A FLUX.1 whose T5 is quantized, on a device of its own, with samples after each of two epochs."""
    folder = tmp_path_factory.mktemp("encoders")
    images = draw_folder(folder / "images", sizes=[(32, 32)] * 2, captions=["a disc", "two discs"])
    untrained: dict[str, Any] = {"train": False}
    return small_config(
        folder,
        model=tiny_flux,
        images=images,
        general={"train_device": "cpu:1", "debug_checks": True},
        data={"latent_cache": True, "text_cache": True, "resolution_px": [32], "cache_location": "memory"},
        parts={"text_encoder": untrained, LARGE: {**untrained, "dtype": "int8"}},
        sampling={"every": {"n": 1, "unit": "epoch"}, "at_end": False, "prompts": [PROMPT]},
    )


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is read and when, with the place of the large encoder as the denoiser is placed."""
    seen: list[str] = []

    def note(owner: type, name: str, describe: Callable[..., str]) -> None:
        plain = getattr(owner, name)

        def noted(self: Any, *arguments: Any) -> Any:
            seen.append(describe(self, *arguments))
            return plain(self, *arguments)

        monkeypatch.setattr(owner, name, noted)

    note(PartReader, "parts", lambda self, *names: f"read {' '.join(sorted(names))}")
    note(PartReader, "again", lambda self, name: f"read {name} again")
    note(Placement, "enter", lambda self, phase: phase)
    note(Placement, "add_part", lambda self, name, _: f"place {name}, {LARGE} {self.device_of(LARGE)}")
    return seen


def test_the_denoiser_is_read_when_the_encoder_has_left(config: Config, events: list[str]) -> None:
    ran = run(config)
    assert len(ran.of(SampleReady)) == 2
    first, late = events.index(f"read text_encoder {LARGE} vae"), events.index(f"read {DENOISER}")
    captions, prompts = events.index(phases.CACHE_CAPTIONS), events.index(phases.SAMPLE_ENCODE)
    assert first < captions < late
    assert first < prompts < late
    assert f"place {DENOISER}, {LARGE} {DROPPED}" in events
    # Nothing needs the encoder afterwards: the prompts of the samples are known.
    assert f"read {LARGE} again" not in events
    assert phases.SAMPLE_ENCODE not in events[late:]


@pytest.mark.full
def test_a_changed_prompt_has_the_encoder_read_again(
    config: Config, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = laid_over(config, {"sampling": {"prompts": [PROMPT, CHANGING]}})
    with_drops = run(changing)
    assert f"read {LARGE} again" in events
    monkeypatch.setattr(model, "has_encoders_to_drop", lambda config, may_stay: False)
    kept = run(changing)
    assert losses(with_drops) == losses(kept)
    assert_equal_tensors(with_drops.weights, kept.weights)
    assert samples(with_drops) == samples(kept)


def test_a_stop_while_captions_are_encoded_reads_no_denoiser(config: Config, events: list[str], tmp_path: Path) -> None:
    stopped_at = laid_over(config, {"general": {"workspace_dir": str(tmp_path), "cache_dir": str(tmp_path / "cache")}})

    def stop(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, CacheProgress) and event.what == "captions":
            send(Stop())

    stopped = run(stopped_at, on_event=stop)
    assert stopped.finished.outcome == "stopped"
    assert f"read {DENOISER}" not in events
    again, straight = run(stopped_at), run(config)  # nothing was trained that could be resumed
    assert losses(again) == losses(straight)
    assert_equal_tensors(again.weights, straight.weights)


@pytest.mark.full
def test_alignprop_denoises_with_the_prompts_that_were_encoded_before(
    config: Config, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"name": "alignprop", "steps": 2, "gradient_truncation": "fixed", "backprop_steps": 1}
    reward = {"models": [{"kind": "brightness"}], "measure_every": {"n": 1, "unit": "step"}, "num_images": 1}
    aligned = laid_over(config, {"training": {"method": method, "epochs": 1}, "reward": reward})
    with_drops = run(aligned)
    assert events.index(phases.CACHE_CAPTIONS) < events.index(f"read {DENOISER}")
    assert f"place {DENOISER}, {LARGE} {DROPPED}" in events
    monkeypatch.setattr(model, "has_encoders_to_drop", lambda config, may_stay: False)
    kept = run(aligned)
    assert losses(with_drops) == losses(kept)
    assert_equal_tensors(with_drops.weights, kept.weights)


def samples(ran: Ran) -> list[bytes]:
    return [Path(event.path).read_bytes() for event in ran.of(SampleReady)]


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": {LARGE: {"train": True, "dtype": "float32"}}},
        {"data": {"text_cache": False}},
        {"training": {"trains": "full"}},
    ],
    ids=["trained", "not cached", "written with the model"],
)
def test_an_encoder_that_is_needed_stays(config: Config, changes: dict[str, Any]) -> None:
    assert not model.has_encoders_to_drop(laid_over(config, changes), {})
    assert model.has_encoders_to_drop(config, {})
    assert not model.has_encoders_to_drop(config, {phases.TRAIN: frozenset({LARGE})})


def quantized_layers_of(form: str) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).requires_grad_(False)
    quantize_layers(layers, ChosenFormat(FORMATS[form], EVERYTHING))
    return layers


@pytest.mark.parametrize("form", [name for name, record in FORMATS.items() if not record.is_stored])
def test_weights_that_left_are_refused_and_come_back_the_same(form: str) -> None:
    layers, x = quantized_layers_of(form), torch.randn(2, 64)
    expected = layers(x)
    placement = Placement(
        {"encoder": layers, "denoiser": nn.Linear(1, 1)},
        train_device=CPU,
        temp_device=CPU,
        needed_in=lambda phase: frozenset({phase}),
        read_again={"encoder": lambda: quantized_layers_of(form)},
    )
    placement.enter("encoder")
    placement.enter("denoiser")
    assert torch.equal(layers(x), expected)  # until then it is only offloaded
    placement.drop_readable()
    assert sum(weight.untyped_storage().nbytes() for weight in layers.parameters()) < 64
    with pytest.raises(ParkedPartError, match="dropped"):
        layers(x)
    placement.enter("encoder")
    assert torch.equal(layers(x), expected)


def test_weights_that_are_others_than_before_are_refused() -> None:
    layers = nn.Sequential(nn.Linear(2, 2))
    drop_weights(layers, CPU)
    with pytest.raises(ValueError, match=r"differ from those before, first 0\.weight"):
        refill_weights(layers, nn.Sequential(nn.Linear(3, 2)))


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_memory_holds_one_quantized_part_at_a_time(tmp_path: Path) -> None:
    """Weights of 100 million in float32 files are quantized as they are read, and the encoder leaves before."""
    # Large arrays that are freed go back to the system at once.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 18)}
    command = [sys.executable, "-m", "tests.builders.host_memory", str(tmp_path), "int8", "bfloat16"]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures = json.loads(child.stdout.splitlines()[-1])
    kept, files = figures["kept"].values(), figures["files"].values()
    assert max(kept) < 0.3 * max(files)
    assert max(kept) < figures["peak"] < 1.4 * max(kept)
    assert figures["peak"] < 0.8 * sum(kept)
    assert 0.7 * figures["peak"] < figures["estimate"] < 1.1 * figures["peak"]
