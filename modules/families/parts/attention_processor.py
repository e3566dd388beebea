"""Puts an attention implementation into a denoiser built of diffusers' attention layers.

The record of the denoiser's class names the function that does it (`ModelClass.attention`): it sets processors of our
own, or one of diffusers' attention backends for classes whose processors choose among these.

Kernels compute softmax(Q K^T / sqrt(channels)) V (Vaswani et al. 2017, equation 1) in several ways. All take queries,
keys and values (B, heads, tokens, channels) and return (B, heads, tokens, channels). A kernel is chosen where it is
called, so that recomputation in a backward pass uses the same one.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.attention import AttentionModuleMixin
from diffusers.models.attention_dispatch import attention_backend
from diffusers.models.attention_processor import Attention
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from modules.families.attention import ATTENTIONS, usable_attentions
from modules.families.model_class import ModelClass
from modules.memory.compiled_blocks import compile_by_size
from modules.system.devices import Device
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.file_errors import plain_reason

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

    return compile_by_size(flex_attention)


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


class KernelProcessor:
    """diffusers' `AttnProcessor2_0` for the layers of a UNet, with any kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        *_: object,
        **__: object,
    ) -> torch.Tensor:
        """Return the attention of states (B, tokens, channels) to themselves, or to a text's (B, tokens, channels)."""
        if attention_mask is not None:
            raise ValueError("The UNet of Stable Diffusion has no attention mask.")
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key, value = (
            layer(states).unflatten(-1, (attn.heads, -1)).transpose(1, 2)
            for layer, states in ((attn.to_q, hidden_states), (attn.to_k, source), (attn.to_v, source))
        )
        states = self.kernel(query, key, value).transpose(1, 2).flatten(2).to(query.dtype)
        result: torch.Tensor = attn.to_out[1](attn.to_out[0](states))
        return result


def set_attention(module: nn.Module, model: ModelClass, name: str, *, device: Device, dtype: torch.dtype) -> None:
    """Use an implementation in every attention layer of a denoiser that will compute on a device in a dtype.

    Raises DarkroomError if it does not run there; the message names those that may. Also raises it if the denoiser's
    class keeps its own implementation, or does not have this one.
    """
    spec = ATTENTIONS[name]
    if not spec.kernel:
        return
    if not model.attention or (model.has_backends and not spec.backend):
        raise DarkroomError(
            f"The attention {spec.label} is not supported for this model.",
            advice=f"Choose the attention {next(iter(ATTENTIONS.values())).label}.",
        )
    layers = _attention_layers(module)
    if layers:
        channels = int(layers[0].to_q.out_features) // _num_heads(layers[0])
        _try_out(load_factory(spec.kernel), name, channels, model, device=device, dtype=dtype)
    load_factory(model.attention)(module, name)


def set_processors(unet: nn.Module, name: str) -> None:
    """Give every attention layer of a UNet a processor with an implementation's kernel."""
    kernel: Kernel = load_factory(ATTENTIONS[name].kernel)
    for layer in _attention_layers(unet):
        layer.set_processor(KernelProcessor(kernel))


def set_backend(transformer: Any, name: str) -> None:
    """Let the processors of a transformer compute attention with an implementation's backend in diffusers.

    diffusers would make it the default of every other model in the process, too.
    """
    with attention_backend():
        transformer.set_attention_backend(ATTENTIONS[name].backend)


def _attention_layers(module: nn.Module) -> list[Any]:
    return [m for m in module.modules() if isinstance(m, Attention | AttentionModuleMixin)]


def _num_heads(layer: Any) -> int:
    """Return the heads of queries of a layer; diffusers' classes differ in the name."""
    return int(layer.heads if hasattr(layer, "heads") else layer.num_heads)


def _try_out(
    kernel: Kernel, name: str, channels: int, model: ModelClass, *, device: Device, dtype: torch.dtype
) -> None:
    """Raise DarkroomError if a kernel does not run, forward and backward, on a device in a dtype."""
    ones = torch.ones(1, 1, 64, channels, dtype=dtype).to(device.torch).requires_grad_()
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")  # torch explains there which kernel lacks what
            kernel(ones, ones, ones).sum().backward()
    except (RuntimeError, ImportError, ValueError) as error:
        others = usable_attentions(device.type, is_16_bit=dtype.itemsize == 2, has_backends=model.has_backends)
        labels = ", ".join(ATTENTIONS[other].label for other in others if other != name)
        raise DarkroomError(
            f"The attention {ATTENTIONS[name].label} does not run on {device} in {str(dtype).removeprefix('torch.')}: "
            f"{plain_reason(error)}.",
            advice=f"Choose another attention: {labels}.",
        ) from error
