"""The checkpointed forward: exact gradients in every mode, and the ways it failed elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from modules.adapters.lora import LoraAdapter, LoraShape, attach_lora
from modules.adapters.targets import target_layers
from modules.data.buckets import Size
from modules.data.frame import Frame
from modules.families.protocol import Conditioning, ModelFamily, PartMemory
from modules.memory.checkpointing import create_checkpointed_forward
from modules.memory.guard import DeviceGuard
from modules.system.devices import CPU, Device
from tests.builders.matrix import matrix
from tests.builders.pipelines import load_tiny

TEMP = Device("cpu:1")
FRAME = Frame(Size(100, 80), 3, 0, Size(64, 64))


def trained_parts(family: ModelFamily) -> list[str]:
    return [n for n, p in family.parts.items() if p.spec.trainable]


def conditioning_of(family: ModelFamily, prompts: list[str]) -> Conditioning:
    return family.framed(family.encode_prompts(prompts), [FRAME] * len(prompts))


def with_lora(model: Path, *, dropout: float = 0.0) -> tuple[ModelFamily, list[LoraAdapter]]:
    family: ModelFamily = load_tiny(model)
    adapters = []
    generator = torch.Generator().manual_seed(1)
    for name in trained_parts(family):
        part = family.parts[name]
        targets = target_layers(part.module, part.spec.role, layers="all", custom_layers="", reaches=part.reaches)
        adapter = attach_lora(name, part.module, targets, LoraShape(2, 2.0, dropout, torch.float32), seed=3)
        for key, parameter in adapter.parameters().items():
            if "lora_B" in key:  # zero at first, which would hide A's gradient
                parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
        part.module.train()
        adapters.append(adapter)
    return family, adapters


def gradients(
    family: ModelFamily, parameters: dict[str, torch.nn.Parameter], memory: PartMemory, *, seed: int = 0
) -> dict[str, torch.Tensor | None]:
    family.set_memory(dict.fromkeys(trained_parts(family), memory), train_device=CPU, temp_device=TEMP)
    for parameter in parameters.values():
        parameter.grad = None
    generator = torch.Generator().manual_seed(7)
    noisy = torch.randn(2, 4, 8, 8, generator=generator)
    torch.manual_seed(seed)  # for dropout
    conditioning = conditioning_of(family, ["a red disc", "a cat"])
    output = family.predict(noisy, torch.tensor([10, 700]), conditioning)
    output.square().mean().backward()
    return {name: p.grad for name, p in parameters.items()}


MEMORIES = [
    PartMemory(mode, offload) for mode in ("block", "whole") for offload in (False, True)
] + [PartMemory("off", True)]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "memory", "kind"),
    matrix(["tiny_sd", "tiny_sdxl"], MEMORIES, ["lora", "lora with dropout", "full"]),
    ids=str,
)
def test_gradients_equal_the_plain_ones_bit_for_bit(
    request: pytest.FixtureRequest, model: str, memory: PartMemory, kind: str
) -> None:
    folder = request.getfixturevalue(model)
    if kind == "full":
        family: ModelFamily = load_tiny(folder)
        parameters = {
            f"{name}.{n}": p.requires_grad_(True)
            for name in trained_parts(family)
            for n, p in family.parts[name].module.named_parameters()
            if family.parts[name].reaches(n)
        }
    else:
        family, adapters = with_lora(folder, dropout=0.3 if "dropout" in kind else 0.0)
        parameters = {n: p for a in adapters for n, p in a.parameters().items()}
    plain = gradients(family, parameters, PartMemory())
    saved = gradients(family, parameters, memory)
    assert plain.keys() == saved.keys()
    for name in plain:
        assert plain[name] is not None, f"{name} is reached by no gradient"
        assert torch.equal(plain[name], saved[name]), name


def test_offloaded_activations_cross_devices_only_by_moving(tiny_sd: Path) -> None:
    family, adapters = with_lora(tiny_sd)
    parameters = {n: p for a in adapters for n, p in a.parameters().items()}
    plain = gradients(family, parameters, PartMemory("block", offload_activations=True))
    guard = DeviceGuard()
    with guard:
        for name in trained_parts(family):
            guard.retag_module(family.parts[name].module, CPU)
        guarded = gradients(family, parameters, PartMemory("block", offload_activations=True))
    assert all(torch.equal(plain[n], guarded[n]) for n in plain)


@pytest.mark.parametrize("mode", ["block", "whole"])
def test_a_part_frozen_in_mid_run_goes_on(any_model: Path, mode: str) -> None:
    """OneTrainer#549: all of the text encoder frozen, its layers still checkpointed."""
    family, [unet, *texts] = with_lora(any_model)
    frozen = {n: p for text in texts for n, p in text.parameters().items()}
    for parameter in frozen.values():
        parameter.requires_grad_(False)
    result = gradients(family, unet.parameters() | frozen, PartMemory(mode))
    assert all(result[n] is None for n in frozen)
    assert all(result[n] is not None and result[n].abs().sum() > 0 for n in unet.parameters())


@pytest.mark.parametrize("mode", ["off", "block", "whole"])
def test_online_preference_training_gives_every_lora_parameter_its_gradient(tiny_sd: Path, mode: str) -> None:
    """trl#2671: a rollout without gradients, the adapters off for the reference and on again, then a prediction."""
    family, adapters = with_lora(tiny_sd)
    family.set_memory(dict.fromkeys(trained_parts(family), PartMemory(mode)), train_device=CPU, temp_device=TEMP)
    noisy, timesteps = torch.randn(1, 4, 8, 8), torch.tensor([400])
    with torch.no_grad():
        rollout = family.predict(noisy, timesteps, conditioning_of(family, ["a cat"]))
    with adapters[0].disabled(), adapters[1].disabled():
        reference = family.predict(noisy, timesteps, conditioning_of(family, ["a cat"]))
    assert not torch.equal(rollout, reference)
    output = family.predict(noisy, timesteps, conditioning_of(family, ["a cat"]))
    (output - reference).square().mean().backward()
    for adapter in adapters:
        for name, parameter in adapter.parameters().items():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_a_disabled_adapter_is_back_after_an_exception(tiny_sd: Path) -> None:
    family, [unet, _] = with_lora(tiny_sd)
    noisy, timesteps = torch.randn(1, 4, 8, 8), torch.tensor([400])
    with torch.no_grad():
        conditioning = conditioning_of(family, ["a cat"])
        before = family.predict(noisy, timesteps, conditioning)
        with pytest.raises(RuntimeError, match="planted"), unet.disabled():
            raise RuntimeError("planted")
        assert torch.equal(before, family.predict(noisy, timesteps, conditioning))


def test_the_temp_device_may_not_be_left_out(tiny_sd: Path) -> None:
    """OneTrainer#467, #470: two of three arguments, found out at step 31. Here: when the run is built."""
    with pytest.raises(TypeError, match="temp_device"):
        create_checkpointed_forward(torch.nn.Linear(2, 2), train_device=CPU)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        create_checkpointed_forward(torch.nn.Linear(2, 2), CPU, CPU)  # type: ignore[misc]


@pytest.fixture
def counting() -> Iterator[list[int]]:
    """Count saved tensors' bytes while the fixture's list is first in line."""
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        yield sizes


def test_checkpointing_saves_what_it_is_for(tiny_sd: Path, counting: list[int]) -> None:
    family, adapters = with_lora(tiny_sd)
    parameters = {n: p for a in adapters for n, p in a.parameters().items()}
    kept = {}
    for mode in ("off", "block", "whole"):
        counting.clear()
        family.set_memory(dict.fromkeys(trained_parts(family), PartMemory(mode)), train_device=CPU, temp_device=TEMP)
        output = family.predict(torch.randn(2, 4, 8, 8), torch.tensor([1, 2]), conditioning_of(family, ["a", "b"]))
        kept[mode] = sum(counting)
        output.square().mean().backward()
        assert all(p.grad is not None for p in parameters.values())
    assert kept["block"] < 0.7 * kept["off"]
    assert kept["whole"] < 0.2 * kept["off"]
