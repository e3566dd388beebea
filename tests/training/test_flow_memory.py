"""The memory estimate of flow families against real passes of their denoisers at the published sizes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from inspect import signature
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from modules.adapters.lora import Lora
from modules.adapters.lora_layers import LoraShape, attach_lora
from modules.adapters.protocol import target_layers
from modules.data.inputs import EDITED_IMAGE
from modules.estimate.recordings import recordings_of
from modules.estimate.tracing import trace_part
from modules.families.parts.forwards import block_types, transformer_types
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import shipped_configs
from modules.families.registry import files_of
from modules.memory.arrays import Tape
from modules.memory.checkpointing import create_checkpointed_forward
from modules.memory.part_plan import AdapterPlan, PartPlan
from modules.memory.recording import PassSize, Recording
from modules.memory.replay import Replay
from modules.system.devices import CPU
from modules.system.factories import load_factory
from tests.builders.adapter_plans import LORA_MEMORY
from tests.builders.editing_models import EDITING_MODELS
from tests.builders.flow_models import FLOW_MODELS, WITH_VARIANTS, flow_model
from tests.builders.live_bytes import LiveBytes, cuda_autocast, fuse_norms_as_on_a_gpu, give_weights, is_adapter
from tests.builders.pipelines import load_tiny

RANK = 8
BF16 = torch.bfloat16
SIZE = PassSize(1, 512, 512, 64)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["block", "off"])
@pytest.mark.parametrize("trains", ["adapter", "full"])
@pytest.mark.parametrize("name", WITH_VARIANTS)
def test_a_training_pass_needs_the_estimated_memory(name: str, trains: str, mode: Any) -> None:
    """A LoRA on the default layers, or all weights, in bfloat16 with mixed precision."""
    assert replayed(name, trains, mode) == pytest.approx(measured(name, trains, mode), rel=0.15)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["block", "off"])
@pytest.mark.parametrize("name", WITH_VARIANTS)
def test_a_pass_without_autocast_needs_the_estimated_memory(name: str, mode: Any) -> None:
    """A LoRA on the default layers of a model in bfloat16: the norms of some compute in float32."""
    found = measured(name, "adapter", mode, autocasts=False)
    # Of the rows of HiDream's experts and of Wuerstchen's 144 latents: their weights are 40 times as large.
    tolerance = 0.2 if name in ("tiny_hidream", "tiny_wuerstchen") else 0.15
    assert replayed(name, "adapter", mode, autocasts=False) == pytest.approx(found, rel=tolerance)


@pytest.mark.full
@pytest.mark.parametrize("name", ["tiny_z_image", "tiny_qwen_image", "tiny_sd3"])
def test_norms_that_are_not_fused_need_the_estimated_memory(name: str) -> None:
    """As on a CPU without autocast, where diffusers' norms keep copies in float32."""
    options = {"autocasts": False, "fuses_norms": False}
    found = measured(name, "adapter", "off", **options)
    assert replayed(name, "adapter", "off", **options) == pytest.approx(found, rel=0.15)
    assert replayed(name, "adapter", "off", autocasts=False) < 0.95 * found


@pytest.mark.parametrize("name", FLOW_MODELS)
def test_a_pass_without_autocast_needs_no_more_memory(name: str) -> None:
    assert replayed(name, "adapter", "block", autocasts=False) <= replayed(name, "adapter", "block")


@pytest.mark.full
@pytest.mark.parametrize("name", EDITING_MODELS)
def test_a_pass_with_a_reference_needs_the_memory_of_a_larger_image(name: str, request: pytest.FixtureRequest) -> None:
    """All weights in float32, at toy size: the estimate counts the reference as if the image were twice as high."""
    editing, side_px = EDITING_MODELS[name], 256
    family: Any = load_tiny(request.getfixturevalue(name), flow_model(editing.of).family, variant=editing.variant)
    spec, module = family.spec, family.denoiser.requires_grad_(True)
    noisy, reference = torch.randn(2, 1, *spec.latents.shape(side_px, side_px))
    with torch.no_grad():
        text = family.encode_prompts(["a disc"])
    with LiveBytes() as live:
        family.predict(noisy, torch.tensor([500.0]), text, {EDITED_IMAGE: reference}).mean().backward()
    recording = trace_part(spec, spec.denoiser, dict(module.config))["forward"]
    size = PassSize(1, side_px, 2 * side_px, text.tensors()["states"].shape[1])
    assert peak_of(recording, PartPlan(trains="full"), size) == pytest.approx(live.peak, rel=0.1)


def replayed(name: str, trains: Any, mode: Any, *, autocasts: bool = True, fuses_norms: bool = True) -> int:
    """The peak of the replay of the denoiser's pass."""
    spec = flow_model(name).spec
    configs = shipped_configs(files_of(spec.name).models[0].name)
    recording = recordings_of(spec, configs)[spec.denoiser.name]["forward"]
    layers = spec.denoiser.model.layers["attention_mlp"]
    adapter = AdapterPlan(Lora(rank=RANK), LORA_MEMORY, 4, layers) if trains == "adapter" else None
    plan = PartPlan(
        weight_bytes=2,
        compute_bytes=2,
        trains=trains,
        adapter=adapter,
        checkpointing=mode,
        autocasts=autocasts,
        fuses_norms=fuses_norms,
    )
    return peak_of(recording, plan, SIZE)


def peak_of(recording: Recording, plan: PartPlan, size: PassSize) -> int:
    """The most that is in use in the replay of a training pass, gradients among it."""
    tape = Tape()
    replay = Replay(tape, plan, recording, size, records=True)
    results = replay.run(replay.inputs())
    forward = tape.meter.peak
    del results
    tape.end_forward()
    return max(forward, sum(tape.backward_peak("new")))


def measured(name: str, trains: str, mode: Any, *, autocasts: bool = True, fuses_norms: bool = True) -> int:
    """The most that is in use in a training pass, gradients among it, weights left out."""
    spec = flow_model(name).spec
    model, config = spec.denoiser.model, shipped_configs(files_of(spec.name).models[0].name)[spec.denoiser.name]
    module: Any = empty_part(load_factory(spec.denoiser.model_class), config).train()
    if trains == "adapter":
        layers = target_layers(module, "denoiser", layers=model.layers["attention_mlp"], reaches=lambda path: True)
        with torch.device("meta"):
            lora = attach_lora(spec.denoiser.name, module, layers, LoraShape(RANK, 8.0, 0.0, torch.float32), seed=0)
        if not autocasts:
            lora.compute_in_input_dtype(BF16)
    with FakeTensorMode():
        give_weights(
            module, dtype=BF16, adapter_dtype=torch.float32, learns=lambda n: trains == "full" or is_adapter(n)
        )
        traced = load_factory(model.passes)(module, spec)["forward"]
        if fuses_norms and not autocasts:
            fuse_norms_as_on_a_gpu(module)
        forward = create_checkpointed_forward(
            module,
            train_device=CPU,
            temp_device=CPU,
            mode=mode,
            block_types=block_types(model),
            transformer_types=transformer_types(model),
        )
        with default_dtype(BF16):
            inputs = traced.inputs(SIZE)
        with LiveBytes() as live, cuda_autocast(BF16) if autocasts else nullcontext(lambda: None) as end_forward:
            options = {"return_dict": False} if "return_dict" in signature(module.forward).parameters else {}
            loss = first_tensor(forward(**inputs, **options)).float().mean()
            end_forward()
            loss.backward()
        return live.peak


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new tensors in a dtype, as the tracer does for the inputs."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def first_tensor(output: Any) -> torch.Tensor:
    """The output of a denoiser, of one that returns a list of images the first of them."""
    while not isinstance(output, torch.Tensor):
        output = output[0]
    return output
