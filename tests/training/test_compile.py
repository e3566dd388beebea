"""Compiled blocks: the gradients of the plain ones, in every combination; counted, reported, and never a crash.

With a backend of torch's that generates no code ("aot_eager"), which takes a second instead of a minute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.families.protocol import ModelFamily, PartMemory
from modules.memory.compiled_blocks import Compilation
from modules.system.devices import CPU, Device
from tests.training.test_checkpointing import (
    Parameters,
    chained,
    in_bfloat16,
    plain_gradients,
    predicted,
    trained,
)

TEMP = Device("cpu:1")


@pytest.fixture(autouse=True)
def nothing_left_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


def compilation(backend: str = "aot_eager") -> Compilation:
    return Compilation(iter(range(1_000_000)).__next__, backend=backend)


def compiled_gradients(
    family: ModelFamily, parameters: Parameters, memory: PartMemory, loss: Any = predicted
) -> dict[str, torch.Tensor | None]:
    family.set_memory({"unet": memory}, train_device=CPU, temp_device=TEMP)
    for parameter in parameters.values():
        parameter.grad = None
    torch.manual_seed(0)  # for dropout
    loss(family).backward()
    return {name: p.grad for name, p in parameters.items()}


def assert_close(plain: dict[str, torch.Tensor | None], found: dict[str, torch.Tensor | None], rtol: float) -> None:
    largest = max(g.abs().max() for g in plain.values() if g is not None)
    for name, gradient in plain.items():
        if gradient is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], gradient, rtol=rtol, atol=rtol * float(largest))


@pytest.mark.parametrize(
    ("kind", "loss", "memory"),
    [
        ("full", predicted, PartMemory("off")),
        ("full", chained, PartMemory("whole")),
        ("full", predicted, PartMemory("block", offload_fraction=0.6)),
        ("lora-dropout", predicted, PartMemory("block", offload_activations=True)),
        ("lora", in_bfloat16, PartMemory("off", offload_activations=True)),
        ("lokr", predicted, PartMemory("block")),
    ],
)
def test_gradients_are_those_of_the_plain_blocks(tiny_sd: Path, kind: str, loss: Any, memory: PartMemory) -> None:
    family, parameters = trained(tiny_sd, kind)
    compiling = compilation()
    found = compiled_gradients(family, parameters, dataclasses.replace(memory, compilation=compiling), loss)
    assert not compiling.failure
    assert compiling.counts.num_blocks == 15
    assert 0 < compiling.counts.num_graphs < 15  # blocks of one structure share a graph
    plain = plain_gradients(tiny_sd, kind, loss)
    assert_close(plain, found, 1e-5 if loss is not in_bfloat16 else 0.02)
