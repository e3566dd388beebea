"""Runs on a pretended GPU: every step, sample and validation meets tensors of one device there, without a GPU.

`tests/builders/pretended_gpu.py` refuses what a GPU refuses. The tests with the mark `gpu` are for a real one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.config.schema import Config
from modules.memory import transfers
from modules.memory.guard import DeviceGuard
from modules.memory.placement import Placement
from modules.optim.ema import Ema
from modules.quantization.registry import COMPUTED
from modules.system import hardware
from modules.system.devices import CPU, Device, move
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.pretended_gpu import CAN_PRETEND, MixedDevicesError, NoKernelError, pretended_gpu
from tests.builders.recorded_operations import RecordedOperations
from tests.builders.runs import Ran, assert_equal_tensors, assert_lora_trained, run, steps_of
from tests.training.test_devices import assert_all_went_well, watched_config
from trainer.events import SampleReady, ValidationFinished, WarningRaised
from trainer.run import stepper
from trainer.run.placement import freed_memory
from trainer.step.precision import process_settings

pytestmark = pytest.mark.skipif(not CAN_PRETEND, reason="needs torch's build for CPUs on Linux")

CASES: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "float16": {"training": {"precision": "float16"}},
    "no checkpointing, EMA there": {
        "parts": {"unet": {"checkpointing": "off", "offload_activations": False}},
        "training": {"precision": "bfloat16", "ema": {"mode": "train_device"}},
    },
    "selective": {"parts": {"unet": {"checkpointing": "selective"}}},
    "transformer": {"parts": {"unet": {"checkpointing": "transformer"}}},
    "auto": {"parts": {"unet": {"checkpointing": "auto"}}},
    "offloaded layers": {"parts": {"unet": {"offload_fraction": 0.5}}},
    "fine-tune": {"form": "folder"},
    "offloaded fine-tune": {"form": "folder", "parts": {"unet": {"offload_fraction": 1.0}}},
    "int8": {"parts": {"unet": {"dtype": "int8"}}, "training": {"precision": "bfloat16"}},
    "nfloat4": {"parts": {"unet": {"dtype": "nfloat4"}}, "training": {"precision": "bfloat16"}},
    "int8 W8A8": {"parts": {"unet": {"dtype": "int8_w8a8"}}, "training": {"precision": "bfloat16"}},
    "float8 W8A8": {"parts": {"unet": {"dtype": "float8_w8a8"}}, "training": {"precision": "bfloat16"}},
    "deterministic": {"general": {"deterministic": True}},
    "fused": {"form": "folder", "training": {"optimizer": {"name": "adamw", "fused_back_pass": True}}},
}


@pytest.fixture(scope="module")
def two_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("two-sizes"), sizes=[(64, 64), (64, 64), (96, 64)])


@pytest.fixture
def _nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "here", lambda: hardware.Hardware("cu130", False, (8.6,)))


def config_there(model: Path, images: Path, folder: Path, *, is_cached: bool, **changes: Any) -> Config:
    form = changes.pop("form", "kohya")
    config = watched_config(model, images, folder, form=form, text_is_trained=not is_cached)
    there = {
        "general": {"train_device": "auto", "temp_device": "cpu", "debug_checks": False},
        "data": {"latent_cache": is_cached, "text_cache": is_cached},
    }
    return laid_over(laid_over(config, there), changes)


def run_there(model: Path, images: Path, folder: Path, *, is_cached: bool, **changes: Any) -> Ran:
    config = config_there(model, images, folder, is_cached=is_cached, **changes)
    with pretended_gpu() as counts:
        ran = run(config)
    assert counts.num_operations > 10_000  # the work was done there
    return ran


@pytest.mark.usefixtures("_nvidia")
def test_a_short_run(tiny_sd: Path, two_sizes: Path, tmp_path: Path) -> None:
    """The images and captions encoded at each use, a trained text encoder, offloaded activations, EMA beside it."""
    short = {"training": {"epochs": 1}, "sampling": {"at_start": False}}
    ran = run_there(tiny_sd, two_sizes, tmp_path, is_cached=False, **short)
    assert ran.finished.outcome == "finished"
    assert ran.of(SampleReady)
    assert ran.of(ValidationFinished)
    assert not [w.message for w in ran.of(WarningRaised) if "could not" in w.message]


@pytest.mark.full
@pytest.mark.usefixtures("_nvidia")
@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_all_the_same(any_model: Path, two_sizes: Path, tmp_path: Path, case: str, is_cached: bool) -> None:
    assert_all_went_well(run_there(any_model, two_sizes, tmp_path, is_cached=is_cached, **CASES[case]))


@pytest.mark.full
@pytest.mark.usefixtures("_nvidia")
@pytest.mark.parametrize("dtype", COMPUTED)
def test_quantized_flow_models(
    tiny_z_image: Path, two_sizes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Products in 8 bits are computed in 8 bits there: no layer is left to 16 bits by its size or the card."""
    products_in_8_bits = Counter[str]()
    for name in ("_int_mm", "_scaled_mm"):
        monkeypatch.setattr(torch, name, _counted(products_in_8_bits, name, getattr(torch, name)))
    config = config_there(
        tiny_z_image, two_sizes, tmp_path, is_cached=True,
        training={"precision": "bfloat16"}, parts={"transformer": {"dtype": dtype}},
    )  # fmt: skip
    with pretended_gpu(), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
        ran = run(config)
    assert_all_went_well(ran)
    assert set(products_in_8_bits) == {{"int8": "_int_mm", "float8": "_scaled_mm"}[r] for r in _rounding(dtype)}
    assert_lora_trained(ran)


def _rounding(dtype: str) -> list[str]:
    return [rounding] if (rounding := COMPUTED[dtype].rounds_inputs) else []


def _counted(calls: Counter[str], name: str, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls[name] += 1
        return function(*args, **kwargs)

    return counted


@pytest.mark.full
@pytest.mark.usefixtures("_nvidia")
@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_recorded_steps_there_are_those_without(
    tiny_sd: Path, two_sizes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trains: str
) -> None:
    """Passes and updates, on the double of CUDA graphs: their slots, learning rates and results are on one device."""
    changes = {
        "general": {"train_device": "auto", "temp_device": "cpu"},
        "training": {"trains": trains, "epochs": 4, "batch_size": 1, "learning_rate": 2.0**-10},
        "parts": {"unet": {"dtype": "bfloat16", "checkpointing": "block"}, "text_encoder": {"train": False}},
    }
    config = laid_over(small_config(tmp_path, model=tiny_sd, images=two_sizes), changes)
    with pretended_gpu():
        plain = run(config)
    recorder = RecordedOperations()
    monkeypatch.setattr(stepper, "records_steps", lambda *_: True)
    monkeypatch.setattr(stepper, "recorder_of", lambda _: recorder)
    with pretended_gpu():
        ran = run(config)
    assert any("aten::_fused_adamw_" in names for names in recorder.contents)
    assert recorder.events[-1][0] == "replay"
    assert not [w for w in ran.of(WarningRaised) if "CUDA graph" in w.message]
    assert steps_of(ran) == steps_of(plain)
    assert_equal_tensors(ran.weights, plain.weights)


def test_what_a_gpu_refuses_is_refused() -> None:
    with pretended_gpu():
        there, here = torch.ones(2, 3, device="cuda"), torch.ones(2, 3)
        assert torch.equal((there + 1.0).cpu(), here + 1.0)
        assert float((there * torch.tensor(2.0)).sum()) == 12.0
        number, rows = torch.tensor(1.0), torch.zeros(2, dtype=torch.int64)
        mixtures: list[Callable[[], object]] = [
            lambda: there + here,
            lambda: there @ here.T,
            lambda: here + there.sum(),
            lambda: torch.stack([there.sum(), number]),
            lambda: there.index_select(0, rows),
            lambda: there.index_put_((rows,), here),
            lambda: torch._foreach_mul_([there, here], [there, there]),
        ]
        for mixed in mixtures:
            with pytest.raises(MixedDevicesError):
                mixed()
        with pytest.raises(MixedDevicesError, match="generator"):
            torch.randn(2, device="cuda", generator=torch.Generator())
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
    assert not torch.cuda.is_available()


def test_waits_are_counted_with_their_places() -> None:
    with pretended_gpu() as counts:
        there, here = torch.ones(2, 3, device="cuda"), torch.ones(2, 3)
        waiting: list[Callable[[], object]] = [
            lambda: there.sum().item(),
            lambda: there[there > 2.0],
            lambda: there[torch.tensor([0])],
            lambda: there.copy_(here),
            lambda: torch.tensor([there.sum()]),
        ]
        for number, wait in enumerate(waiting, start=1):
            wait()
            assert counts.num_waits == number
        there.copy_(here.pin_memory(), non_blocking=True)
        torch.empty(2, 3, pin_memory=True).copy_(there, non_blocking=True)
        assert counts.waits == {"another package": len(waiting)}  # and no line of the program


def test_what_has_no_deterministic_kernel_is_refused_in_deterministic_mode() -> None:
    with pretended_gpu(), process_settings(num_threads=1, precision="float32", deterministic=True):
        assert torch.ones(3, device="cuda", dtype=torch.int64).cumsum(0).tolist() == [1, 2, 3]
        with pytest.raises(NoKernelError, match="cumsum does not have a deterministic"):
            torch.ones(3, device="cuda").cumsum(0)
        image = torch.ones(1, 1, 4, 4, device="cuda", requires_grad=True)
        with pytest.raises(NoKernelError, match="bicubic"):
            torch.nn.functional.interpolate(image, (2, 2), mode="bicubic").sum().backward()


def test_what_only_kernels_of_a_cpu_take_is_refused() -> None:
    with pretended_gpu():
        states, weight = torch.ones(2, 16, device="cuda", dtype=torch.bfloat16), torch.ones(16, device="cuda")
        with pytest.raises(NoKernelError, match="layer_norm"):
            torch.nn.functional.layer_norm(states, (16,), weight)
        with pytest.raises(NoKernelError, match="group_norm"):
            torch.nn.functional.group_norm(states, 2, weight)
        values = torch.ones(16, 16, device="cuda", dtype=torch.int8)
        with pytest.raises(NoKernelError, match="_int_mm"):  # too few rows
            torch._int_mm(values, values.T)
        rows = torch.ones(32, 16, device="cuda").to(torch.float8_e4m3fn)
        one = torch.ones((), device="cuda")
        with pytest.raises(NoKernelError, match="float8"):  # the second operand lies in rows
            torch._scaled_mm(rows, rows[:16], scale_a=one, scale_b=one, out_dtype=torch.float32)
        layer = torch.nn.Linear(3, 2, device="cuda")
        layer(torch.ones(1, 3, device="cuda")).sum().backward()
        assert layer.weight.grad is not None
        layer.weight.grad = layer.weight.grad.T.contiguous().T
        with pytest.raises(NoKernelError, match="_fused_adamw_"):
            torch.optim.AdamW(layer.parameters(), fused=True).step()


@pytest.mark.parametrize(("missing", "kept", "is_pinned"), [(0, 0, True), (1, 0, False), (1, 1, True)])
def test_weights_that_wait_are_pinned_while_memory_is_free(
    monkeypatch: pytest.MonkeyPatch, missing: int, kept: int, is_pinned: bool
) -> None:
    """Torch takes 64 bytes for these 36, or some that it keeps pinned."""
    monkeypatch.setattr(transfers, "free_memory", lambda: transfers._LEFT_FREE_BYTES + 64 - missing)
    with pretended_gpu(), monkeypatch.context() as patch:
        stats = {"allocated_bytes": {"current": 100 + kept}, "active_bytes": {"current": 100}}
        patch.setattr(torch.cuda, "host_memory_stats_as_nested_dict", lambda: stats)
        weight = torch.ones(3, 3, device="cuda")
        waiting = transfers.on_temp_device(weight, train_device=Device("cuda"), temp_device=CPU)
        assert (waiting.device.type, waiting.is_pinned()) == ("cpu", is_pinned)
        assert torch.equal(waiting, torch.ones(3, 3))


def test_the_guard_knows_where_a_copy_from_the_gpu_is() -> None:
    """Debug checks on a GPU, with EMA beside it: the copy of a weight in the computer's memory is not on the GPU."""
    with pretended_gpu(), DeviceGuard() as guard:
        weight = torch.nn.Parameter(move(torch.ones(2, 2), Device("cuda")))
        ema = Ema({"weight": weight}, decay=0.5, update_every_steps=1, device=CPU)
        with torch.no_grad():
            weight.add_(1.0)
        ema.update(1)
        assert guard.tag_of(ema.averages["weight"]) == "cpu"
        assert guard.tag_of(weight.cpu()) in ("cpu", None)
        assert float(ema.averages["weight"].mean()) == pytest.approx(1.9)


def test_a_freed_pause_empties_the_card() -> None:
    """Tensors on "cuda" are on "cuda:0", which is another `torch.device`."""
    with pretended_gpu():
        layer, card = torch.nn.Linear(2, 2), Device("cuda")
        placement = Placement(
            {"unet": layer}, train_device=card, temp_device=CPU, needed_in=lambda phase: frozenset({"unet"})
        )
        placement.enter("train")
        optimizer = torch.optim.AdamW(layer.parameters())
        layer(torch.ones(1, 2, device="cuda")).sum().backward()
        optimizer.step()
        averages = {"weight": torch.ones(2, 2, device="cuda")}
        stepper: Any = SimpleNamespace(optimizer=optimizer, ema=SimpleNamespace(averages=averages, device=card))
        held = [t for s in optimizer.state.values() for t in s.values() if t.dim()] + [*averages.values()]
        held += [*layer.parameters(), *(p.grad for p in layer.parameters() if p.grad is not None)]
        assert len(held) == 9
        assert {t.device.type for t in held} == {"cuda"}
        with freed_memory(placement, [], stepper, emit=lambda event: None):
            assert {t.device.type for t in held} == {"cpu"}
        assert {t.device.type for t in held} == {"cuda"}
        placement.close()
