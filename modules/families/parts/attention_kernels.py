"""Attention kernels: softmax(Q K^T / sqrt(channels)) V (Vaswani et al. 2017, equation 1), computed in several ways.

All take queries, keys and values of shape (B, heads, tokens, channels) and return (B, heads, tokens, channels). A
kernel is chosen where it is called, so that recomputation in a backward pass uses the same one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _sdpa(backend: SDPBackend, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(query, key, value)


sdpa_flash: Kernel = functools.partial(_sdpa, SDPBackend.FLASH_ATTENTION)
sdpa_efficient: Kernel = functools.partial(_sdpa, SDPBackend.EFFICIENT_ATTENTION)
sdpa_math: Kernel = functools.partial(_sdpa, SDPBackend.MATH)
sdpa_cudnn: Kernel = functools.partial(_sdpa, SDPBackend.CUDNN_ATTENTION)


def flex(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """PyTorch's FlexAttention, compiled: without compiling it would hold the matrix of all tokens by all tokens."""
    result: torch.Tensor = _compiled_flex()(query, key, value)
    return result


@functools.cache
def _compiled_flex() -> Kernel:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The package flash-attn (Dao 2023, "FlashAttention-2"), which has tokens before heads."""
    from flash_attn import flash_attn_func

    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    deterministic = torch.are_deterministic_algorithms_enabled()
    result: torch.Tensor = flash_attn_func(q, k, v, deterministic=deterministic)
    return result.transpose(1, 2)


def xformers(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The package xFormers' memory-efficient attention, which has tokens before heads."""
    from xformers.ops import memory_efficient_attention

    q, k, v = (t.transpose(1, 2).contiguous() for t in (query, key, value))
    result: torch.Tensor = memory_efficient_attention(q, k, v)
    return result.transpose(1, 2)
