"""Puts an attention implementation into a denoiser built of diffusers' attention layers.

The record of the denoiser's class names the way (`ModelClass.attention`): processors of our own for the layers of a
UNet, or diffusers' attention backends for classes whose processors choose among them.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from diffusers.models.attention import AttentionModuleMixin
from diffusers.models.attention_processor import Attention
from torch import nn

from modules.families.attention import ATTENTIONS, usable_attentions
from modules.families.parts.attention_kernels import Kernel
from modules.families.spec import ModelClass
from modules.system.devices import Device
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory


class KernelProcessor:
    """diffusers' `AttnProcessor2_0` for the layers of a UNet, with a kernel of one's own."""

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
        found = self.kernel(query, key, value).transpose(1, 2).flatten(2).to(query.dtype)
        result: torch.Tensor = attn.to_out[1](attn.to_out[0](found))
        return result


def set_attention(module: nn.Module, model: ModelClass, name: str, *, device: Device, dtype: torch.dtype) -> None:
    """Use an implementation in every attention layer of a denoiser that will compute on a device in a dtype.

    Raises DarkroomError if it does not run there; the message names those that may. Also raises it if the denoiser's
    class keeps its own implementation.
    """
    spec = ATTENTIONS[name]
    if not spec.kernel:
        return
    if not model.attention:
        raise DarkroomError(
            f"The attention {spec.label} is not supported for this model.",
            advice=f"Choose the attention {next(iter(ATTENTIONS.values())).label}.",
        )
    layers = _attention_layers(module)
    if layers:
        channels = int(layers[0].to_q.out_features) // int(layers[0].heads)
        _try_out(load_factory(spec.kernel), name, channels, device=device, dtype=dtype)
    load_factory(model.attention)(module, name)


def set_processors(unet: nn.Module, name: str) -> None:
    """Give every attention layer of a UNet a processor with an implementation's kernel."""
    kernel: Kernel = load_factory(ATTENTIONS[name].kernel)
    for layer in _attention_layers(unet):
        layer.set_processor(KernelProcessor(kernel))


def set_backend(transformer: Any, name: str) -> None:
    """Let the processors of a transformer compute attention with an implementation's backend in diffusers."""
    transformer.set_attention_backend(ATTENTIONS[name].backend)


def _attention_layers(module: nn.Module) -> list[Any]:
    return [m for m in module.modules() if isinstance(m, Attention | AttentionModuleMixin)]


def _try_out(kernel: Kernel, name: str, channels: int, *, device: Device, dtype: torch.dtype) -> None:
    """Raise DarkroomError if a kernel does not run, forward and backward, on a device in a dtype."""
    made = torch.ones(1, 1, 64, channels, dtype=dtype).to(device.torch).requires_grad_()
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")  # torch explains there which kernel lacks what
            kernel(made, made, made).sum().backward()
    except (RuntimeError, ImportError, ValueError) as error:
        others = usable_attentions(device.type, is_16_bit=dtype.itemsize == 2)
        labels = ", ".join(ATTENTIONS[other].label for other in others if other != name)
        raise DarkroomError(
            f"The attention {ATTENTIONS[name].label} does not run on {device} in {str(dtype).removeprefix('torch.')}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}",
            advice=f"Choose another attention: {labels}.",
        ) from error
