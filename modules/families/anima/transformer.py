"""diffusers' transformer of Cosmos-Predict2, without its need for torchvision, and with a choice of attention.

diffusers' module resizes the mask of padded pixels with `transforms` of torchvision, which this program does not
install. Without torchvision the module lacks that name, and gets one here with the same function in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch
from diffusers.models.attention_dispatch import attention_backend
from diffusers.models.attention_processor import Attention
from diffusers.models.transformers import transformer_cosmos
from diffusers.models.transformers.transformer_cosmos import CosmosTransformer3DModel
from torch import nn

from modules.families.attention import ATTENTIONS

__all__ = ["CosmosTransformer3DModel", "set_backend"]


def _resize(image_BCHW: torch.Tensor, size: Sequence[int], interpolation: object = None) -> torch.Tensor:
    """Return an image with the nearest pixels, as torchvision's `resize` in this mode."""
    return nn.functional.interpolate(image_BCHW, size=tuple(size), mode="nearest")


if not hasattr(transformer_cosmos, "transforms"):
    transformer_cosmos.transforms = SimpleNamespace(
        functional=SimpleNamespace(resize=_resize), InterpolationMode=SimpleNamespace(NEAREST="nearest")
    )


class BackendProcessor:
    """The processor of an attention layer with one of diffusers' attention backends; diffusers' own has no choice.

    Only captions beyond the usual length need masks (`text_mask`); PyTorch chooses the kernel for those.
    """

    def __init__(self, processor: Callable[..., torch.Tensor], backend: str) -> None:
        self.processor = processor
        self.backend = backend

    def __call__(
        self,
        attn: Attention,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: object = None,
    ) -> torch.Tensor:
        """Return the attention, computed by the backend."""
        arguments = (attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb)
        if attention_mask is not None:  # only some backends take one
            return self.processor(*arguments)
        with attention_backend(self.backend):
            return self.processor(*arguments)


def set_backend(transformer: nn.Module, name: str) -> None:
    """Let the attention layers of the transformer compute with an implementation's backend in diffusers."""
    for layer in transformer.modules():
        if isinstance(layer, Attention):
            processor = layer.processor.processor if isinstance(layer.processor, BackendProcessor) else layer.processor
            layer.set_processor(BackendProcessor(processor, ATTENTIONS[name].backend))
