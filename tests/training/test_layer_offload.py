"""Layer offloading: which weights are copied and when, which stay, and that a run is bit-equal to one without."""

from __future__ import annotations

import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.families.protocol import ModelFamily, PartMemory
from modules.memory import checkpointing
from modules.memory.checkpointing import create_checkpointed_forward, offloaded_weights
from modules.memory.guard import DeviceGuard
from modules.memory.offloaded_layers import choose_offloaded
from modules.memory.placement import Placement
from modules.memory.transfers import IncomingTensors, Transfers
from modules.system.devices import CPU, Device
from tests.builders.configs import laid_over, small_config
from tests.builders.matrix import matrix
from tests.builders.pipelines import load_tiny
from tests.builders.pretended_gpu import CAN_PRETEND, PretendedEvent, pretended_gpu
from tests.builders.runs import assert_equal_tensors, run
from tests.training.test_checkpointing import Loss, chained, predicted, trained_parts, with_lora
from trainer.events import BackupSaved, SampleReady, ValidationFinished
from trainer.run.machine import machine_of
from trainer.run.model import load_model

TEMP = Device("cpu:1")
PARTS = ("unet", "text_encoder", "text_encoder_2")


class CountingGuard(DeviceGuard):
    """Counts the bytes that move, by direction, and those that moving put on the training device at once."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: Counter[tuple[str | None, str]] = Counter()
        self.here = self.most_here = 0

    def retag(self, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        source = self.tag_of(tensor)
        copy = super().retag(tensor, device)
        if copy is not tensor:
            self.moved[source, device.name] += copy.nbytes
            if source == TEMP.name:
                self.here += copy.nbytes
                self.most_here = max(self.most_here, self.here)
                weakref.finalize(copy.untyped_storage(), self._gone, copy.nbytes)
        return copy

    def _gone(self, num_bytes: int) -> None:
        self.here -= num_bytes


def passed(family: ModelFamily, part: str, memory: PartMemory, *, loss: Loss = predicted) -> CountingGuard:
    """Do a forward and backward pass, one part of the family saving memory, and return what moved."""
    family.set_memory({part: memory}, train_device=CPU, temp_device=TEMP)
    guard = CountingGuard()
    with guard:
        placement = placed(family, guard)
        loss(family).backward()
        placement.close()
    return guard


def placed(family: ModelFamily, guard: DeviceGuard) -> Placement:
    placement = Placement(
        {n: p.module for n, p in family.parts.items()},
        train_device=CPU,
        temp_device=TEMP,
        needed_in=lambda phase: frozenset(family.parts if phase == "train" else ()),
        guard=guard,
    )
    placement.enter("train")
    return placement


def num_bytes(weights: Any) -> int:
    return sum(w.nbytes for w in weights)


def learning_whole(model: Path, part: str) -> ModelFamily:
    family: ModelFamily = load_tiny(model)
    for name in trained_parts(family):
        family.parts[name].module.requires_grad_(name == part)
    return family


def last_layer(module: nn.Module) -> list[nn.Parameter]:
    """The offloaded weights that a forward pass uses last."""
    forwards = (checkpointing._offloaded_forward(m.__dict__.get("forward")) for m in module.modules())
    return next(f for f in forwards if f is not None)._part._order[-1].weights


# -- which layers are offloaded


@given(st.lists(st.integers(0, 1000), max_size=40), st.floats(0, 1))
def test_at_most_the_share_waits_and_less_by_no_more_than_a_layer(sizes: list[int], fraction: float) -> None:
    waits = choose_offloaded(sizes, fraction)
    offloaded = sum(s for s, w in zip(sizes, waits, strict=True) if w)
    assert offloaded <= fraction * sum(sizes) + 1e-3
    assert offloaded > fraction * sum(sizes) - 2 * max(sizes, default=0) - 1e-3
    assert not any(w for s, w in zip(sizes, waits, strict=True) if s == 0)


def test_offloaded_layers_are_spread_and_the_last_stays() -> None:
    assert choose_offloaded([5] * 6, 0.5) == [True, False, True, False, True, False]
    assert choose_offloaded([5] * 10, 0.3).count(True) == 3
    assert choose_offloaded([5] * 3, 1.0) == [True] * 3
    assert not any(choose_offloaded([5] * 3, 0.0))


# -- what travels


@pytest.mark.parametrize("part", ["unet", "text_encoder"])
def test_frozen_weights_travel_one_way_only(any_model: Path, part: str) -> None:
    family, adapters = with_lora(any_model)
    resident = frozenset(n.removeprefix(f"{part}.") for a in adapters for n in a.parameters())
    guard = passed(family, part, PartMemory("block", offload_fraction=0.5, resident=resident))
    offloaded = num_bytes(offloaded_weights(family.parts[part].module))
    assert offloaded > 0
    # Once for the forward pass and once for the backward pass, which begins with the layer that is still there; nothing
    # of the model ever goes back.
    twice = 2 * offloaded - num_bytes(last_layer(family.parts[part].module))
    assert guard.moved == {("cpu:1", "cpu"): twice, (None, "cpu"): guard.moved[None, "cpu"]}
    assert guard.here == 0
    for adapter in adapters:
        assert all(p.grad is not None and guard.tag_of(p) == "cpu" for p in adapter.parameters().values())


@pytest.mark.parametrize("part", ["unet", "text_encoder"])
def test_of_weights_that_learn_the_gradient_goes_to_where_they_rest(any_model: Path, part: str) -> None:
    family = learning_whole(any_model, part)
    guard = passed(family, part, PartMemory("block", offload_fraction=0.5))
    weights = offloaded_weights(family.parts[part].module)
    reached = [w for w in weights if w.grad is not None]
    assert guard.moved["cpu", "cpu:1"] == num_bytes(reached) > 0
    assert {guard.tag_of(w) for w in weights} == {"cpu:1"}
    assert {guard.tag_of(w.grad) for w in reached} == {"cpu:1"}
    resting = {id(w) for w in weights}
    others = [p for p in family.parts[part].module.parameters() if id(p) not in resting]
    assert {guard.tag_of(p) for p in others} == {"cpu"}


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_the_training_device_holds_less_by_what_waits(tiny_sdxl: Path, fraction: float) -> None:
    """Of the offloaded layers, the device holds the current one and the next."""
    family = learning_whole(tiny_sdxl, "unet")
    guard = passed(family, "unet", PartMemory("block", offload_fraction=fraction))
    unet = family.parts["unet"].module
    blocks = [num_bytes(w) for m in unet.modules() if (w := offloaded_weights_of_one(m))]
    offloaded, everything = sum(blocks), num_bytes(unet.parameters())
    assert offloaded == num_bytes(offloaded_weights(unet))
    assert offloaded > (fraction - 0.1) * 0.8 * everything  # nearly all weights are in such blocks
    assert 0 < guard.most_here <= sum(sorted(blocks)[-2:])
    assert guard.here == 0


def offloaded_weights_of_one(module: nn.Module) -> list[nn.Parameter]:
    return offloaded_weights(module) if "forward" in module.__dict__ else []


def test_a_hook_on_a_weight_sees_the_whole_gradient_once(tiny_sd: Path) -> None:
    """A step that is fused into the backward pass hangs on it; in a chain of predictions every one adds its share."""
    family = learning_whole(tiny_sd, "unet")
    names = {n: p for n, p in family.parts["unet"].module.named_parameters()}
    seen: dict[str, list[torch.Tensor]] = {n: [] for n in names}

    def letting_go(name: str) -> Any:
        def hook(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            seen[name].append(parameter.grad)
            parameter.grad = None

        return hook

    hooks = [p.register_post_accumulate_grad_hook(letting_go(n)) for n, p in names.items()]
    for memory in (PartMemory("block"), PartMemory("block", offload_fraction=0.5)):
        passed(family, "unet", memory, loss=chained)
    assert all(len(of_one) == 2 for of_one in seen.values())
    assert all(torch.equal(*of_one) for of_one in seen.values())
    for hook in hooks:
        hook.remove()


def test_a_part_frozen_in_mid_run_sends_nothing_back_any_more(tiny_sd: Path) -> None:
    family = learning_whole(tiny_sd, "unet")
    guard = passed(family, "unet", PartMemory("block", offload_fraction=1.0))
    assert guard.moved["cpu", "cpu:1"] > 0
    family.parts["unet"].module.requires_grad_(False)
    family.parts["text_encoder"].module.requires_grad_(True)
    guard = passed(family, "unet", PartMemory("block", offload_fraction=1.0))
    assert guard.moved["cpu", "cpu:1"] == 0
    assert guard.moved["cpu:1", "cpu"] > 0


# -- the next layer is fetched meanwhile


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is fetched and computed, by the width of the layer."""
    log: list[str] = []
    plain = Transfers.bring

    def bring(self: Transfers, tensors: Any, **options: Any) -> IncomingTensors:
        log.append(f"fetch {tensors[0].shape[0]}")
        return plain(self, tensors, **options)

    monkeypatch.setattr(Transfers, "bring", bring)
    return log


class Recorder(nn.Linear):
    log: list[str]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.log.append(f"compute {self.out_features}")
        return super().forward(input)


def test_the_next_layer_is_fetched_before_one_is_computed(log: list[str]) -> None:
    model = nn.Sequential(Recorder(4, 1), Recorder(1, 2), Recorder(2, 3))
    Recorder.log = log
    forward = create_checkpointed_forward(
        model, train_device=CPU, temp_device=TEMP, mode="block", block_types=(Recorder,), offload_fraction=1.0
    )
    expected = {
        "recorded": "fetch 1, compute 1, fetch 2, compute 2, fetch 3, compute 3",
        "known": "fetch 1, fetch 2, compute 1, fetch 3, compute 2, compute 3",
        "back": "fetch 2, compute 3, fetch 1, compute 2, compute 1",  # the last one is still there
    }
    x = torch.ones(1, 4)
    output = forward(x)
    assert ", ".join(log) == expected["recorded"]
    for _ in range(2):
        log.clear()
        output.sum().backward()
        assert ", ".join(log) == expected["back"]
        log.clear()
        output = forward(x)
        assert ", ".join(log) == expected["known"]
    log.clear()
    with torch.no_grad():
        forward(x)
    assert ", ".join(log) == expected["known"]


def test_small_layers_are_fetched_together(log: list[str]) -> None:
    """As many as have the bytes of the second largest: here two of the small ones, or the large one behind them."""
    widths = (8, 1, 2, 3, 9)
    model = nn.Sequential(*(Recorder(8, n) if n == 8 else Recorder(1, n) for n in widths))
    Recorder.log = log
    create_checkpointed_forward(
        model, train_device=CPU, temp_device=TEMP, mode="off", block_types=(Recorder,), offload_fraction=1.0
    )
    sizes = [num_bytes(layer.parameters()) for layer in model]
    assert sorted(sizes)[-2] == sizes[-1] >= sizes[1] + sizes[2] + sizes[3]
    part = checkpointing._offloaded_forward(model[0].forward)
    assert part is not None
    for layer in model:  # their order
        layer(torch.ones(1, layer.in_features))
    part._part.begin()
    log.clear()
    with torch.no_grad():
        model[0](torch.ones(1, 8))
    assert log == ["fetch 8", "fetch 1", "fetch 2", "fetch 3", "compute 8"]
    log.clear()
    with torch.no_grad():
        for layer in model[1:]:
            layer(torch.ones(1, 1))
    assert log == ["compute 1", "compute 2", "fetch 9", "compute 3", "compute 9"]


@pytest.mark.skipif(not CAN_PRETEND, reason="needs torch's build for CPUs, on Linux")
def test_a_backward_pass_waits_once_for_the_gradients_of_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that take as long as they can: none has arrived before the end."""
    gradients, waits = [], []
    for is_offloaded in (False, True):
        with pretended_gpu() as counts:
            monkeypatch.setattr(PretendedEvent, "query", lambda event: False)
            torch.manual_seed(0)
            model, device = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))), Device("cuda")
            run_forward = create_checkpointed_forward(
                model,
                train_device=device,
                temp_device=CPU,
                mode="block",
                block_types=(nn.Linear,),
                offload_fraction=float(is_offloaded),
            )
            placement = Placement(
                {"unet": model}, train_device=device, temp_device=CPU, needed_in=lambda phase: {"unet"}
            )
            placement.enter("train")
            x = torch.ones(2, 4).to("cuda")
            for _ in range(2):  # the second pass adds to the gradients
                loss = run_forward(x).square().mean()
                before = counts.num_waits
                loss.backward()
                waits.append(counts.num_waits - before)
            assert {p.grad.device.type for p in model.parameters()} == {"cpu" if is_offloaded else "cuda"}
            gradients.append({n: p.grad.to("cpu") for n, p in model.named_parameters()})
            placement.close()
    assert waits == [0, 0, 1, 1]
    plain, late = ({n: torch.tensor(g.tolist()) for n, g in some.items()} for some in gradients)
    assert_equal_tensors(plain, late)


def test_after_a_failure_no_weight_is_out_of_place_or_out_of_date(log: list[str]) -> None:
    model = nn.Sequential(Recorder(4, 1), Recorder(1, 2))
    Recorder.log = log
    forward = create_checkpointed_forward(
        model, train_device=CPU, temp_device=TEMP, block_types=(Recorder,), mode="off", offload_fraction=1.0
    )
    with DeviceGuard(), torch.no_grad():
        before = forward(torch.ones(1, 4))
        with pytest.raises(RuntimeError, match="shapes"):
            forward(torch.ones(1, 3))  # dies in the first layer, with the second one fetched already
        assert all(isinstance(p, nn.Parameter) for m in model for p in m._parameters.values())
        for parameter in model.parameters():
            parameter += 1.0
        after = forward(torch.ones(1, 4))
        assert not torch.equal(before, after)
        for layer in model:
            del layer.forward
        assert torch.equal(after, model(torch.ones(1, 4)))


# -- where a part is


def test_a_placed_part_has_only_its_staying_layers_on_the_training_device(tiny_sd: Path) -> None:
    family: ModelFamily = load_tiny(tiny_sd)
    family.set_memory({"unet": PartMemory("block", offload_fraction=0.5)}, train_device=CPU, temp_device=TEMP)
    unet, guard = family.parts["unet"].module, DeviceGuard()
    offloaded = {id(w) for w in offloaded_weights(unet)}
    placement = placed(family, guard)
    assert {guard.tag_of(p) for p in unet.parameters() if id(p) in offloaded} == {"cpu:1"}
    assert {guard.tag_of(p) for p in unet.parameters() if id(p) not in offloaded} == {"cpu"}
    placement.enter("rest")
    assert {guard.tag_of(p) for p in unet.parameters()} == {"cpu:1"}
    placement.close()


def test_a_gradient_stays_with_its_weight_where_a_part_comes_back_between_two_micro_batches() -> None:
    """As when a damaged image cache entry is encoded again. "meta" is a device that torch itself distinguishes."""
    model, elsewhere = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))), Device("meta")
    create_checkpointed_forward(
        model,
        train_device=elsewhere,
        temp_device=CPU,
        mode="block",
        block_types=(nn.Linear,),
        offload_fraction=0.5,
    )
    placement = Placement(
        {"unet": model}, train_device=elsewhere, temp_device=CPU, needed_in=lambda phase: frozenset({"unet"})
    )
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    placement.enter("train")
    devices = [(p.device.type, p.grad.device.type) for p in model.parameters() if p.grad is not None]
    assert Counter(devices) == {("cpu", "cpu"): 4, ("meta", "meta"): 4}
    placement.close()


# -- whole runs


def config_of(folder: Path, model: Path, images: Path, *, fraction: float, **changes: Any) -> Config:
    waits = {"checkpointing": "block", "offload_fraction": fraction}
    config = small_config(
        folder,
        model=model,
        images=images,
        concepts=[{"path": str(images)}, {"path": str(images), "kind": "validation"}],
        general={"temp_device": "cpu:1", "debug_checks": fraction > 0},
        parts=dict.fromkeys(PARTS, waits),
        training={"ema": {"mode": "temp_device"}, "batch_size": 4},
        sampling={"at_end": True, "prompts": [{"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2}]},
        validation={"every": {"n": 2, "unit": "epoch"}, "num_timesteps": 2},
    )
    return laid_over(config, changes)


ALL_IN_16_BITS = {name: {"dtype": "bfloat16"} for name in PARTS}
ALL_IN_16_BITS["unet"] |= {"stop_after": {"n": 1, "unit": "epoch"}}
CASES: dict[str, tuple[float, dict[str, Any]]] = {
    "half": (0.5, {}),
    "all, in 16 bits, unet stops": (1.0, ALL_IN_16_BITS),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("model", "trains", "case"), matrix(["tiny_sd", "tiny_sdxl"], ["adapter", "full"], list(CASES), most_daily=3)
)
def test_a_run_with_offloaded_layers_ends_bit_equal(
    request: pytest.FixtureRequest, images: Path, tmp_path: Path, model: str, trains: str, case: str
) -> None:
    """Dry run, training, EMA, validation, sampling, backup and saving."""
    folder, (fraction, parts) = request.getfixturevalue(model), CASES[case]
    plain, ran = [
        run(
            laid_over(
                config_of(tmp_path / str(share), folder, images, fraction=share),
                {"training": {"trains": trains}, "parts": parts},
            )
        )
        for share in (0.0, fraction)
    ]
    assert ran.finished.outcome == "finished"
    assert_equal_tensors(plain.weights, ran.weights)
    assert ran.of(SampleReady)
    assert [v.loss for v in plain.of(ValidationFinished)] == [v.loss for v in ran.of(ValidationFinished)] != []


@pytest.mark.full
@pytest.mark.parametrize("fused", [True, pytest.param(False, marks=pytest.mark.full)])
def test_resumed_with_offloaded_layers_ends_bit_equal(tiny_sd: Path, images: Path, tmp_path: Path, fused: bool) -> None:
    optimizer = {"fused_back_pass": fused}
    config = config_of(
        tmp_path,
        tiny_sd,
        images,
        fraction=0.5,
        training={"trains": "full", "optimizer": optimizer, **({"clip_grad_norm": None} if fused else {})},
        sampling={"at_end": False},
        validation={"every": {"unit": "never"}},
        backup={"every": {"n": 1, "unit": "epoch"}, "keep": 0},
    )
    straight = run(config)
    resumed = run(config, resume_from=Path(straight.of(BackupSaved)[0].path))
    assert_equal_tensors(straight.weights, resumed.weights)


def test_a_weight_computed_with_on_the_offload_device_is_caught(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a layer that is not lent its copies."""
    monkeypatch.setattr("modules.memory.offload._Slot.set_copy", lambda self, copy: None)
    config = config_of(tmp_path, tiny_sd, images, fraction=0.5)
    assert "got tensors on different devices" in getattr(run(config).ending, "message", "")


def test_the_runs_own_parts_wait_and_its_adapters_stay(tiny_sdxl: Path, images: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, tiny_sdxl, images, fraction=1.0)
    model = load_model(config, machine_of(config.general, config.training.precision))
    learning = {id(p) for group in model.groups for p in group.parameters.values()}
    for name in PARTS:
        offloaded = offloaded_weights(model.family.parts[name].module)
        assert offloaded, name
        assert not any(id(w) in learning for w in offloaded)
    model.placement.close()


# -- what is refused


def problems(tmp_path: Path, **changes: Any) -> dict[str, str]:
    changes = {"general": {"temp_device": "cpu:1"}} | changes
    found = problems_of(small_config(tmp_path, model=Path("none"), images=tmp_path, **changes))
    return {p.path: p.severity for p in found if "offloaded" in p.message.lower()}


def test_what_gradients_pass_must_be_checkpointed_per_block(tmp_path: Path) -> None:
    for mode, expected in {"off": "error", "whole": "error", "block": None}.items():
        part = {"offload_fraction": 0.5, "checkpointing": mode}
        assert problems(tmp_path, parts={"unet": part}).get("parts.unet.checkpointing") == expected
        # The text encoder may get gradients through it even where it is not trained itself.
        frozen = problems(tmp_path, parts={"unet": part | {"train": False}})
        assert frozen.get("parts.unet.checkpointing") == expected
        assert problems(tmp_path, parts={"text_encoder": part}).get("parts.text_encoder.checkpointing") == expected
        assert not problems(tmp_path, parts={"text_encoder": part | {"train": False}})


def test_offloading_to_the_training_device_does_nothing_and_is_reported(tmp_path: Path) -> None:
    parts = {"unet": {"offload_fraction": 0.5, "checkpointing": "block"}}
    same = {"general": {"train_device": "cpu", "temp_device": "cpu"}}
    assert problems(tmp_path, parts=parts, **same) == {"parts.unet.offload_fraction": "warning"}
