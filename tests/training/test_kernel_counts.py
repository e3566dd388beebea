"""The count of kernels: a training step on tensors of a GPU without values, with autocast's rules for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.kernels.counter import Counts, KernelCounter
from benchmarks.kernels.fake_gpu import GPU, fake_gpu
from benchmarks.kernels.steps import MODELS, count_step, lora_config
from modules.families.parts.folder_model import folder_configs
from modules.families.parts.single_file.write import CheckpointTraits
from tests.builders.pretended_gpu import CAN_PRETEND

pytestmark = pytest.mark.skipif(not CAN_PRETEND, reason="needs torch's build for CPUs on Linux")


def counted(model: Path, **changes: object) -> Counts:
    configs = folder_configs(model, CheckpointTraits("sdxl"), ("unet", "text_encoder", "text_encoder_2", "vae"))
    width, pooled = configs["unet"]["cross_attention_dim"], configs["text_encoder_2"]["projection_dim"]
    toy = replace(MODELS["sdxl"], text={"states": (1, 77, width), "pooled": (1, pooled)})
    return count_step(toy, lora_config("sdxl", side_px=64, **changes), configs)


def test_operations_count_as_the_kernels_of_a_gpu() -> None:
    """Two products and a sum in 16 bits, by autocast: views and allocations are no kernels, a repeated cast is one."""
    with fake_gpu(), KernelCounter() as counter:
        x = torch.empty(4, 8, device=GPU.torch)
        weight = torch.empty(8, 8, device=GPU.torch, requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = torch.nn.functional.linear(x, weight)
            y = torch.nn.functional.linear(y.view(2, 2, 8).flatten(0, 1), weight) + 1
        assert y.dtype == torch.bfloat16
    counts = counter.counts()
    assert counts.by_operation.keys() == {"mm", "_to_copy", "add"}
    assert (counts.kernels, counts.products, counts.casts) == (5, 2, 2)
    assert counts.traffic_bytes == (4 * 8 + 8 * 8) * (4 + 2) + 2 * 4 * 8 * 2


@pytest.mark.parametrize("function", [torch.nn.functional.silu, torch.nn.functional.mish])
def test_the_gradient_of_an_activation_is_one_kernel(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with fake_gpu(), KernelCounter() as counter:
        x = torch.empty(4, 8, device=GPU.torch, dtype=torch.bfloat16, requires_grad=True)
        function(x).backward(torch.empty(4, 8, device=GPU.torch, dtype=torch.bfloat16))
    counts = counter.counts()
    assert counts.by_operation.keys() == {function.__name__, f"{function.__name__}_backward"}
    assert (counts.kernels, counts.traffic_bytes) == (2, (2 + 3) * 4 * 8 * 2)


def test_a_norm_of_torchs_own_is_one_kernel_and_so_is_its_gradient() -> None:
    with fake_gpu(), KernelCounter() as counter:
        x = torch.empty(4, 8, device=GPU.torch, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.empty(8, device=GPU.torch, dtype=torch.bfloat16)
        torch.nn.functional.rms_norm(x, (8,), weight, 1e-5).backward(torch.empty_like(x))
    found = counter.counts().by_operation
    assert found.keys() == {"_fused_rms_norm", "_fused_rms_norm_backward"}
    assert found["_fused_rms_norm"] == (1, (2 * 4 * 8 + 8) * 2 + 4 * 4)  # and the scale of each row in float32


@pytest.mark.full
def test_the_norms_of_a_step_of_z_image_are_one_kernel_each(tiny_z_image: Path) -> None:
    """With autocast, whose norms are diffusers' own, one is eight operations forward, with a square among them."""
    configs = folder_configs(tiny_z_image, CheckpointTraits("z_image"), ("transformer", "text_encoder", "vae"))
    toy = replace(MODELS["z-image"], text={"states": (1, 32, configs["transformer"]["cap_feat_dim"])})
    fused, written_out = (
        count_step(toy, lora_config("z_image", side_px=64), configs, autocasts=autocasts).by_operation
        for autocasts in (False, True)
    )
    number = fused["_fused_rms_norm"][0]
    assert number >= fused["_fused_rms_norm_backward"][0] > 10
    assert written_out["pow"][0] - fused["pow"][0] > number  # gradients of squares have some, too
    assert "_fused_rms_norm" not in written_out


@pytest.mark.full
def test_a_step_is_counted_and_recomputing_adds_kernels(tiny_sdxl: Path) -> None:
    plain, checkpointed = counted(tiny_sdxl), counted(tiny_sdxl, checkpointing="block")
    assert plain.kernels > plain.products > 100
    assert plain.by_operation["_fused_adamw_"][0] >= 1
    assert plain.by_operation["_foreach_norm"][0] >= 1  # as on a GPU, not one by one
    of_forward = plain.products // 3
    assert of_forward // 2 < checkpointed.products - plain.products < 2 * of_forward
    for operation in ("_fused_adamw_", "_foreach_norm", "convolution_backward"):
        assert checkpointed.by_operation[operation] == plain.by_operation[operation]
