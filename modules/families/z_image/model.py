"""Z-Image: loading it from a diffusers folder or a Hugging Face repository, and running its parts.

Prompts are the states of Qwen3's last layer but one, read as one message of a chat. The template is Qwen3's for a
single message of the user, with the beginning of an answer and thinking enabled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import ChatModel, DenoiserInputs, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec
from modules.families.z_image.spec import MAX_TOKENS, Z_IMAGE, ZImageSettings
from modules.system.errors import DarkroomError

_TEMPLATE = ChatTemplate("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer) -> ChatReader:
    """Return how prompts are read: without padding, which the transformer adds itself."""
    return ChatReader(encoder, tokenizer, _TEMPLATE, MAX_TOKENS, layers=(-2,))


@dataclass(eq=False)
class ZImage(ChatModel[TokenConditioning]):
    """A transformer, a Qwen3, a VAE; implements `ModelFamily`. The transformer pads the states of prompts itself."""

    def _output(self, given: DenoiserInputs[TokenConditioning]) -> torch.Tensor:
        """Return the output (B, 16, H, W): the transformer reads lists of latents with one frame, and of states."""
        states = [given.cast(states_LD) for states_LD in given.text.split()]
        images = list(given.noisy_BCHW.unsqueeze(2))
        outputs = self._forward(self.spec.denoiser.name)(images, given.time_B, states, return_dict=False)
        return torch.stack(outputs[0]).squeeze(2)


def load(request: LoadRequest[ZImageSettings]) -> ZImage:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Z-Image.
    """
    files = read_model(request, Z_IMAGE)
    if files.parts["transformer"].config.siglip_feat_dim is not None:
        raise DarkroomError(
            f"{files.name} also reads images (Z-Image Omni), which is not supported.", advice="Choose Z-Image."
        )
    return ZImage(
        **flow_facts(files, Z_IMAGE, "z_image"),
        reader=prompt_reader(files.parts["text_encoder"], load_chat_tokenizer(files.tokenizers.get("text_encoder"))),
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `ZImageTransformer2DModel`, which goes through its images one by one."""

    def inputs(size: InputSize) -> dict[str, Any]:
        return {
            "x": list(size.latents(size.channels).unsqueeze(2)),
            "t": size.times(),
            "cap_feats": list(size.text(transformer.config.cap_feat_dim)),
        }

    return forward_pass(transformer, spec, inputs, text=["cap_feats"], is_per_image=True)
