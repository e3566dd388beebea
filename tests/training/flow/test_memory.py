"""Saving memory changes no gradient of any flow family, and the estimate follows the batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch

from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.protocol import ModelFamily, PartMemory
from modules.memory.compiled_blocks import Compilation
from modules.system.devices import CPU, Device
from tests.builders.configs import laid_over
from tests.builders.flow_models import FlowModel
from tests.builders.pipelines import noise_of
from tests.builders.runs import assert_equal_tensors
from trainer.preflight.run_budget import memory_estimate
from trainer.run.reading import load_family


@pytest.mark.daily(4)
def test_the_memory_of_a_run_is_estimated(config: Config) -> None:
    estimates = [  # so many images that the peak is not that of the text encoders
        memory_estimate(laid_over(config, {"training": {"batch_size": n}}), {Size(64, 64): 64}) for n in (16, 64)
    ]
    activations = [dict(estimate.peak.parts)["activations"] for estimate in estimates if estimate is not None]
    assert 0 < 3 * activations[0] < activations[1] < 5 * activations[0]


@pytest.mark.daily(4)
def test_weights_that_are_quantized_as_they_are_read_are_the_same(config: Config, tiny: FlowModel) -> None:
    """The files are in float32: one way casts each part as it is read, the other each layer as it is quantized."""
    encoders = tiny.spec.names_of("text_encoder")
    parts = {name: {"dtype": "int8", "train": False} for name in (tiny.spec.denoiser.name, *encoders)}
    changed = laid_over(config, {"parts": parts, "training": {"precision": "bfloat16"}})
    load = partial(load_family, changed.model, changed.part, quantized=quantized_parts(changed))
    one_by_one, at_once = load(), load(before_quantizing=lambda family: None)
    for name, part in at_once.parts.items():
        tensors, others = (
            dict((*m.named_parameters(), *m.named_buffers())) for m in (part.module, one_by_one.parts[name].module)
        )
        assert {n: t.dtype for n, t in others.items()} == {n: t.dtype for n, t in tensors.items()}
        assert_equal_tensors(others, tensors)
    prompts, noisy = ["a disc"], noise_of(at_once, batch=1, seed=0)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        once, other = (
            f.predict(noisy, torch.tensor([250.0]), f.encode_prompts(prompts)) for f in (at_once, one_by_one)
        )
    assert torch.equal(once, other)


def gradients(family: ModelFamily, memory: PartMemory) -> dict[str, torch.Tensor]:
    """The gradients of a loss, with the memory settings of the transformer, of all weights that it reaches."""
    part = family.parts[family.spec.denoiser.name]
    reached = {n: p for n, p in part.module.named_parameters() if part.reaches(n.rpartition(".")[0])}
    for parameter in reached.values():
        parameter.requires_grad_(True)
    part.module.zero_grad()
    family.set_memory({family.spec.denoiser.name: memory}, train_device=CPU, temp_device=Device("cpu:1"))
    text = family.encode_prompts(["a disc", "a disc and a very long square"])
    noisy = noise_of(family, batch=2, seed=0)
    family.predict(noisy, torch.tensor([250.0, 700.0]), text).square().mean().backward()
    assert [n for n, p in reached.items() if p.grad is None] == []
    return {n: p.grad.clone() for n, p in reached.items() if p.grad is not None}


@pytest.mark.daily(9)
@pytest.mark.parametrize(
    "memory",
    [
        PartMemory("block"),
        PartMemory("whole"),
        PartMemory("transformer", offload_activations=True),
        PartMemory("block", offload_fraction=0.5),
    ],
    ids=["block", "whole", "activations", "layers"],
)
def test_gradients_are_those_of_a_plain_pass(family: ModelFamily, memory: PartMemory) -> None:
    assert_equal_tensors(gradients(family, memory), gradients(family, PartMemory()))


class LastBlock(Compilation):
    """Compiles one main block, which takes a second."""

    def compile_in_place(self, blocks: Sequence[torch.nn.Module]) -> None:
        super().compile_in_place(blocks[-1:])


@pytest.mark.daily(1)
def test_a_compiled_block_has_the_same_gradients(family: ModelFamily) -> None:
    plain = gradients(family, PartMemory())
    compilation = LastBlock(iter(range(1_000_000)).__next__, backend="aot_eager")
    compiled = gradients(family, PartMemory("block", compilation=compilation))
    assert not compilation.failure
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-6)
    torch.compiler.reset()
