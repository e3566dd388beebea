"""Parts and tensors are where they must be, in every phase. "cpu:1" is a second device that the guard can tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from modules.data.order import Showing
from modules.memory.guard import DeviceGuard, DeviceMixError
from modules.memory.placement import ParkedPartError, Placement
from modules.system.devices import CPU, Device, move
from tests.builders.configs import small_config
from tests.builders.matrix import matrix
from tests.builders.runs import assert_equal_tensors, run
from trainer import sources
from trainer.events import BackupSaved, ModelSaved, RunFailed, SampleReady, ValidationFinished
from trainer.sources import Prepared

ENCODERS = ("text_encoder", "text_encoder_2")
EVERYTHING = {
    "sampling": {
        "at_start": True,
        "every": {"n": 1, "unit": "epoch"},
        "prompts": [{"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 3.0}],
    },
    "validation": {"every": {"n": 1, "unit": "step"}, "num_timesteps": 2},
    "backup": {"every": {"n": 2, "unit": "step"}, "save_every": {"n": 2, "unit": "step"}},
}


@pytest.mark.parametrize(
    ("model", "latent_cache", "text_cache", "text_learns", "temp_device", "trains"),
    matrix(
        ["tiny_sd", "tiny_sdxl"], [True, False], [True, False], [True, False], ["cpu:1", "cpu"], ["adapter", "full"]
    ),
)
def test_no_phase_uses_a_parked_part_or_mixes_devices(
    request: pytest.FixtureRequest,
    pictures: Path,
    tmp_path: Path,
    model: str,
    latent_cache: bool,
    text_cache: bool,
    text_learns: bool,
    temp_device: str,
    trains: str,
) -> None:
    # A fine-tune's weights in 16 bits, so that their float32 stand-ins are looked at, too.
    dtype = {"dtype": "bfloat16" if trains == "full" else "float32"}
    config = small_config(
        tmp_path,
        model=request.getfixturevalue(model),
        pictures=pictures,
        concepts=[{"path": str(pictures)}, {"path": str(pictures), "kind": "validation"}],
        general={"temp_device": temp_device, "debug_checks": True},
        data={"latent_cache": latent_cache, "text_cache": text_cache},
        parts={
            **{key: {"train": text_learns, **dtype} for key in ENCODERS},
            "unet": {"checkpointing": "block", "offload_activations": True, **dtype},
        },
        training={"ema": {"mode": "temp_device"}, "epochs": 1, "trains": trains},
        **EVERYTHING,
    )
    ran = run(config)
    assert ran.finished.outcome == "finished"
    for kind in (SampleReady, ValidationFinished, BackupSaved, ModelSaved):
        assert ran.of(kind)


def test_the_guard_changes_nothing(tiny_sd: Path, pictures: Path, tmp_path: Path) -> None:
    weights = []
    for checks in (False, True):
        config = small_config(
            tmp_path / str(checks), model=tiny_sd, pictures=pictures,
            general={"temp_device": "cpu:1", "debug_checks": checks},
        )  # fmt: skip
        weights.append(run(config).weights)
    assert_equal_tensors(weights[0], weights[1])


@pytest.mark.parametrize("text_cache", [True, False])
def test_cached_is_bit_equal_to_encoded(any_model: Path, pictures: Path, tmp_path: Path, text_cache: bool) -> None:
    weights = []
    for cached in (False, True):
        config = small_config(
            tmp_path / str(cached),
            model=any_model,
            pictures=pictures,
            data={"latent_cache": cached, "text_cache": cached and text_cache, "caption_dropout": 0.3},
            parts={key: {"train": False} for key in ENCODERS},
        )
        weights.append(run(config).weights)
    assert_equal_tensors(weights[0], weights[1])


def test_an_encoder_left_parked_is_caught(
    tiny_sd: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OneTrainer#459, planted: validation after caching finds the text encoder where the cache left it."""
    plain = Placement._move

    def forgetful(self: Placement, name: str, device: Device) -> None:
        if name != "text_encoder" or device != self.train_device:
            plain(self, name, device)

    monkeypatch.setattr(Placement, "_move", forgetful)
    config = small_config(tmp_path, model=tiny_sd, pictures=pictures, general={"temp_device": "cpu:1"})
    ending = run(config).ending
    assert isinstance(ending, RunFailed)
    assert ParkedPartError.__name__ in ending.message


def test_a_cached_tensor_on_the_wrong_device_is_caught(
    tiny_sd: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sources.CachedLatents.deliver

    def misplaced(
        self: sources.CachedLatents, showings: Sequence[Showing], prepared: Sequence[Prepared]
    ) -> torch.Tensor:
        return move(plain(self, showings, prepared), Device("cpu:1"))

    monkeypatch.setattr(sources.CachedLatents, "deliver", misplaced)
    config = small_config(
        tmp_path, model=tiny_sd, pictures=pictures, general={"temp_device": "cpu:1", "debug_checks": True}
    )
    ending = run(config).ending
    assert isinstance(ending, RunFailed)
    assert DeviceMixError.__name__ in ending.message


def test_the_guard_tells_devices_apart_and_lets_constants_through() -> None:
    with DeviceGuard() as guard:
        here, there = move(torch.ones(2), CPU), move(torch.ones(2), Device("cpu:1"))
        assert guard.tag_of(here * 2 + torch.ones(2)) == "cpu"
        with pytest.raises(DeviceMixError, match=r"cpu: \(2,\), cpu:1: \(2,\)"):
            here + there
        assert guard.tag_of(here + move(there, CPU)) == "cpu"
        assert guard.tag_of(here + there.sum()) == "cpu"  # a tensor without dimensions may meet any


def test_placement_restores_the_former_phase_after_an_exception() -> None:
    module = torch.nn.Linear(2, 2)
    placement = Placement(
        {"part": module},
        train_device=CPU,
        temp_device=Device("cpu:1"),
        needed_in=lambda phase: frozenset({"part"} if phase == "work" else ()),
    )
    with pytest.raises(ParkedPartError, match="part was run"):
        module(torch.ones(2))
    placement.enter("rest")

    def work_and_fail() -> None:
        with placement.phase("work"):
            module(torch.ones(2))
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        work_and_fail()
    assert (placement.current_phase, placement.device_of("part").name) == ("rest", "cpu:1")


def test_the_guard_forgets_the_tags_of_what_is_gone() -> None:
    weight = torch.ones(4, 4)
    with DeviceGuard() as guard:
        guard.retag_module(torch.nn.ParameterList([weight]), CPU)
        kept = guard.retag(weight, Device("cpu:1"))
        for _ in range(1000):
            _ = kept * 2 + 1  # two tensors of a tag each, gone at once
        assert guard.tag_of(kept) == "cpu:1"
        assert len(guard._tags) < 100
