"""Offloading with a real GPU: pinned copies on streams of their own, the same gradients, less memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from modules.families.protocol import ModelFamily, PartMemory
from modules.memory.checkpointing import offloaded_weights
from modules.memory.placement import Placement
from modules.memory.transfers import Transfers
from modules.system.devices import CPU, Device
from tests.builders.pipelines import load_tiny
from tests.training.test_checkpointing import conditioning_of, trained_parts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = Device("cuda")
# Convolutions on a GPU choose their kernels by what memory is free, and add up in another order then.
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def passed(family: ModelFamily, memory: PartMemory, *, batch: int) -> int:
    """Do two forward and backward passes of the whole family; return the most bytes the second one took."""
    family.set_memory(dict.fromkeys(trained_parts(family), memory), train_device=CUDA, temp_device=CPU)
    placement = Placement(
        {n: p.module for n, p in family.parts.items()},
        train_device=CUDA,
        temp_device=CPU,
        needed_in=lambda phase: frozenset(trained_parts(family)),
    )
    placement.enter("train")
    noisy = torch.randn(batch, 4, 32, 32, generator=torch.Generator().manual_seed(7)).cuda()
    timesteps = torch.full((batch,), 400, device="cuda")
    for _ in range(2):  # the first one records the order of the layers
        for name in trained_parts(family):
            family.parts[name].module.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        family.predict(noisy, timesteps, conditioning_of(family, ["a cat"] * batch)).square().mean().backward()
    torch.cuda.synchronize()
    placement.close()
    return torch.cuda.max_memory_allocated()


def gradients_of(family: ModelFamily) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{n}": p.grad.cpu()
        for name in trained_parts(family)
        for n, p in family.parts[name].module.named_parameters()
        if p.grad is not None
    }


def learning(model: Path) -> ModelFamily:
    family: ModelFamily = load_tiny(model)
    for name in trained_parts(family):
        family.parts[name].module.requires_grad_(True)
    return family


@pytest.mark.parametrize(
    "memory",
    [
        PartMemory("block", offload_activations=True),
        PartMemory("block", offload_fraction=0.5),
        PartMemory("block", offload_activations=True, offload_fraction=1.0),
        PartMemory("off", offload_activations=True),
    ],
    ids=str,
)
def test_gradients_are_the_plain_ones(any_model: Path, memory: PartMemory) -> None:
    family = learning(any_model)
    passed(family, PartMemory("block"), batch=2)
    plain = gradients_of(family)
    passed(family, memory, batch=2)
    saved = gradients_of(family)
    assert plain.keys() == saved.keys()
    for name in plain:
        torch.testing.assert_close(saved[name], plain[name], **CLOSE, msg=name)


def test_offloaded_weights_and_their_gradients_are_pinned(tiny_sdxl: Path) -> None:
    family = learning(tiny_sdxl)
    passed(family, PartMemory("block", offload_fraction=0.5), batch=1)
    unet = family.parts["unet"].module
    waiting = offloaded_weights(unet)
    assert waiting
    assert all(w.is_pinned() for w in waiting)
    assert {w.grad.device.type for w in waiting if w.grad is not None} == {"cpu"}
    resting = {id(w) for w in waiting}
    assert {p.device.type for p in unet.parameters() if id(p) not in resting} == {"cuda"}


def test_activations_that_wait_take_no_memory_meanwhile(tiny_sdxl: Path) -> None:
    family = learning(tiny_sdxl)
    plain = passed(family, PartMemory("off"), batch=8)
    assert passed(family, PartMemory("off", offload_activations=True), batch=8) < 0.7 * plain


def test_a_copy_goes_on_while_something_is_computed() -> None:
    """The computing is queued first and is long; the copy, on a stream of its own, is done before it."""
    transfers = Transfers(CUDA, CPU)
    resting = torch.ones(1 << 20).pin_memory()
    matrix = torch.randn(4096, 4096, device="cuda")
    arriving = transfers.bring([resting])
    for _ in range(50):
        matrix = (matrix @ matrix).tanh()
    computed = torch.cuda.current_stream().record_event()
    assert arriving._done is not None
    arriving._done.synchronize()
    assert not computed.query()
    [here] = arriving.take()
    assert torch.equal(here.cpu(), resting)
    [back] = transfers.send_and_wait([here * 2])
    assert torch.equal(back, resting * 2)
