"""Qwen-Image: loading it from a diffusers folder or a Hugging Face repository, and running its parts.

Prompts are Qwen2.5-VL's last states, without the states of the system message before a prompt. In editing models it
sees the reference images before them, whose latents are further tokens of the transformer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from modules.data.inputs import references_of
from modules.families.parts.chat_text import DESCRIBE_IMAGE, ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.parts.packing import pack, unpack
from modules.families.parts.read_model import read_model
from modules.families.parts.seeing_text import SEEN, SeeingReader
from modules.families.parts.text_model import ChatModel, DenoiserInputs, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.qwen_image.files import ZERO_TIME_MARK
from modules.families.qwen_image.spec import (
    MAX_TOKENS,
    ONE_REFERENCE,
    PACKED,
    QWEN_IMAGE,
    QwenImageSettings,
    unused_layers,
)
from modules.families.spec import FamilySpec
from modules.formats.lazy_tensors import LazyTensor, lazy
from modules.system.errors import DarkroomError

DROPPED = 34
"""The tokens of the template before a prompt (`QwenImagePipeline`)."""
EDIT_IMAGE = ChatTemplate(
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new image "
    "that meets the user's requirements while maintaining consistency with the original input where appropriate."
    "<|im_end|>\n<|im_start|>user\n",
    DESCRIBE_IMAGE.after,
)
"""The template of editing models (`QwenImageEditPipeline`, `QwenImageEditPlusPipeline`)."""
EDIT_DROPPED = 64
"""The tokens of that template before the images and the prompt."""
_NUMBERED = "Picture {}: "
_MARK_TOKENS = 32  # of the text around three images
EMPTY = " "
"""The text that is read for an empty prompt: the negative prompt in the examples of the model's authors."""


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer, variant: str = "") -> ChatReader:
    """Return how prompts are read: without padding, which the transformer does not attend to."""
    if not variant:
        return ChatReader(encoder, tokenizer, DESCRIBE_IMAGE, DROPPED + MAX_TOKENS, layers=(-1,), dropped=DROPPED)
    mark = SEEN if variant == ONE_REFERENCE else _NUMBERED + SEEN
    most = EDIT_DROPPED + MAX_TOKENS + _MARK_TOKENS
    return SeeingReader(encoder, tokenizer, EDIT_IMAGE, most, layers=(-1,), dropped=EDIT_DROPPED, mark=mark)


@dataclass(eq=False)
class QwenImage(ChatModel[TokenConditioning]):
    """A transformer, the language model of a Qwen2.5-VL, a VAE; implements `ModelFamily`."""

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: the transformer's are reached, but for the end of the text's
        stream; the text is not trained.
        """
        unused = unused_layers(int(self.denoiser.config.num_layers))
        return super().reaches(part, name) and not f"{name}.".startswith(unused)

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> TokenConditioning:
        """Return the states of prompts, of which an empty one is read as a space."""
        return super().encode_prompts([prompt or EMPTY for prompt in prompts], padded_like)

    def encode_with_images(self, prompts: Sequence[str], images: Sequence[torch.Tensor]) -> TokenConditioning:
        """Return the states of prompts that are read together with the same images, (3, P, P) in [-1, 1]."""
        assert isinstance(self.reader, SeeingReader), "of an editing model"
        read = self.reader.encode_seen(self._forward("text_encoder"), [prompt or EMPTY for prompt in prompts], images)
        return TokenConditioning.of(read)

    def _output(self, given: DenoiserInputs[TokenConditioning]) -> torch.Tensor:
        """Return the output (B, 16, H, W), of the noisy latents and those of reference images."""
        text, (height, width) = given.text, given.noisy_BCHW.shape[-2:]
        images = [given.noisy_BCHW, *references_of(given.images)]
        shapes = [(1, image.shape[-2] // PACKED, image.shape[-1] // PACKED) for image in images]
        output = self._denoise(
            hidden_states=torch.cat([pack(image) for image in images], dim=1),
            timestep=given.time_B,
            encoder_hidden_states=given.cast(text.states_BLD),
            encoder_hidden_states_mask=visible_tokens(text.lengths, given.noisy_BCHW.device),
            img_shapes=[shapes] * len(text),
        )
        num_tokens = (height // PACKED) * (width // PACKED)
        return unpack(output[:, :num_tokens], height, width)

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return f"{super().text_identity()}|{EMPTY}"


def zero_time_mark(config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return the tensor that marks a file of Qwen-Image-Edit-2511, for ComfyUI."""
    return {ZERO_TIME_MARK: lazy(torch.zeros(1))}


_OF_OTHERS = {
    "use_additional_t_cond": "Qwen-Image-Layered",
    "use_layer3d_rope": "Qwen-Image-Layered",
}
"""The keys in a transformer's config that only other models of the series set."""


def load(request: LoadRequest[QwenImageSettings]) -> QwenImage:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Qwen-Image.
    """
    by_inputs = QWEN_IMAGE.by_inputs_alone(request.variant)
    spec = QWEN_IMAGE.of_variant(by_inputs)
    files = read_model(request, spec)
    config = files.parts["transformer"].config
    if others := [label for key, label in _OF_OTHERS.items() if config.get(key)]:
        raise DarkroomError(f"{files.name} is {others[0]}, which is not supported.", advice="Choose Qwen-Image.")
    return QwenImage(
        **flow_facts(files, spec, "qwen_image", by_inputs=by_inputs),
        reader=prompt_reader(
            files.parts["text_encoder"], load_chat_tokenizer(files.tokenizers.get("text_encoder")), by_inputs
        ),
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `QwenImageTransformer2DModel`, for prompts of equal lengths."""
    positions, config = transformer.pos_embed, transformer.config
    # It keeps the positions of each size, so that the pass at the first size would have other operations.
    positions._compute_video_freqs = partial(type(positions)._compute_video_freqs.__wrapped__, positions)

    def inputs(size: InputSize) -> dict[str, Any]:
        return {
            "hidden_states": size.patches(config.in_channels),
            "encoder_hidden_states": size.text(config.joint_attention_dim),
            "timestep": size.times(),
            "img_shapes": [[(1, size.height // size.patch, size.width // size.patch)]] * size.batch,
        }

    return forward_pass(transformer, spec, inputs)
