"""RMS norms of diffusers by torch's own function: the same but for rounding, in 16 bits nearer to the exact norm."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from diffusers.models.normalization import RMSNorm
from torch import nn

from modules.families.parts.fused_norms import FusedRMSNorm, fuse_norms

CHANNELS = 96


def both(dtype: torch.dtype) -> tuple[RMSNorm, RMSNorm]:
    """Return a norm as diffusers writes it out, and the same one fused."""
    torch.manual_seed(0)
    plain, fused = RMSNorm(CHANNELS, eps=1e-5).to(dtype), RMSNorm(CHANNELS, eps=1e-5).to(dtype)
    plain.weight.data.normal_()
    fused.load_state_dict(plain.state_dict())
    fuse_norms(nn.Sequential(fused))
    assert isinstance(fused, FusedRMSNorm)
    return plain, fused


def passed(norm: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the gradient of the input."""
    x = x.clone().requires_grad_()
    out = norm(x)
    (gradient,) = torch.autograd.grad(out.float().square().sum(), x)
    return out.detach(), gradient


def states(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(3, 50, CHANNELS, generator=torch.Generator().manual_seed(1)).to(dtype)


def test_in_float32_only_rounding_changes() -> None:
    plain, fused = both(torch.float32)
    for ours, theirs in zip(passed(fused, states(torch.float32)), passed(plain, states(torch.float32)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_the_result_is_rounded_once(dtype: torch.dtype) -> None:
    """Its error is half a unit in the last place; diffusers' is larger, since it also rounds before the weight."""
    plain, fused = both(dtype)
    x, unit = states(dtype), torch.finfo(dtype).eps
    with torch.no_grad():
        ours, theirs, exact = fused(x).double(), plain(x).double(), deepcopy(plain).double()(x.double())
    least = unit * torch.finfo(dtype).tiny  # of numbers near zero
    torch.testing.assert_close(ours, exact, rtol=0.51 * unit, atol=least)
    torch.testing.assert_close(ours, theirs, rtol=2 * unit, atol=2 * least)
    assert (theirs - exact).abs().mean() > 1.2 * (ours - exact).abs().mean()


@pytest.mark.parametrize(
    ("weights", "inputs", "autocasts"),
    [
        (torch.bfloat16, torch.bfloat16, True),
        (torch.float32, torch.bfloat16, True),
        (torch.bfloat16, torch.float32, False),
        (torch.float32, torch.bfloat16, False),
    ],
)
def test_with_autocast_or_another_dtype_it_is_diffusers_own(
    weights: torch.dtype, inputs: torch.dtype, autocasts: bool
) -> None:
    plain, fused = both(weights)
    with torch.autocast("cpu", dtype=torch.bfloat16) if autocasts else nullcontext():
        for ours, theirs in zip(passed(fused, states(inputs)), passed(plain, states(inputs)), strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)  # the same code


def test_norms_with_a_bias_or_without_a_weight_stay_as_they_are() -> None:
    others = nn.Sequential(RMSNorm(8, 1e-5, bias=True), RMSNorm(8, 1e-5, elementwise_affine=False), nn.RMSNorm(8))
    kinds = [type(norm) for norm in others]
    fuse_norms(others)
    assert [type(norm) for norm in others] == kinds
