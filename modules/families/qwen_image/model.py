"""Qwen-Image: loading it from a diffusers folder or a Hugging Face repository, and running its parts.

Prompts are Qwen2.5-VL's last states, without the states of the system message before a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.diffusion.flow import flow_process_of
from modules.families.parts.chat_model import ChatModel
from modules.families.parts.chat_text import DESCRIBE_IMAGE, ChatReader
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.parts.lora_names import naming_of
from modules.families.parts.packing import pack, unpack
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.families.qwen_image.settings import QwenImageSettings, unused_layers
from modules.families.qwen_image.spec import CONVENTION, MAX_TOKENS, PACKED, QWEN_IMAGE
from modules.system.errors import DarkroomError

DROPPED = 34
"""The tokens of the template before a prompt (`QwenImagePipeline`)."""
EMPTY = " "
"""The text that is read for an empty prompt: the negative prompt in the examples of the model's authors."""


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer) -> ChatReader:
    """Return how prompts are read: without padding, which the transformer does not attend to."""
    return ChatReader(encoder, tokenizer, DESCRIBE_IMAGE, DROPPED + MAX_TOKENS, layers=(-1,), dropped=DROPPED)


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

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the velocity (B, 16, H, W)."""
        text, dtype = self._text(conditioning), self._input_dtype()
        height, width = noisy_BCHW.shape[-2:]
        output = self._forward("transformer")(
            hidden_states=pack(noisy_BCHW.to(dtype)),
            timestep=self.process.time_input(timesteps_B),
            encoder_hidden_states=text.states_BLD.to(dtype),
            encoder_hidden_states_mask=visible_tokens(text.lengths, noisy_BCHW.device),
            img_shapes=[[(1, height // PACKED, width // PACKED)]] * len(noisy_BCHW),
            return_dict=False,
        )
        return self.process.velocity(unpack(output[0], height, width))

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return f"{super().text_identity()}|{EMPTY}"


_OF_OTHERS = {
    "zero_cond_t": "Qwen-Image-Edit-2511",
    "use_additional_t_cond": "Qwen-Image-Layered",
    "use_layer3d_rope": "Qwen-Image-Layered",
}
"""The keys in a transformer's config that only other models of the series set."""


def load(request: LoadRequest[QwenImageSettings]) -> QwenImage:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Qwen-Image.
    """
    files = read_model(request, QWEN_IMAGE)
    config = files.parts["transformer"].config
    if others := [label for key, label in _OF_OTHERS.items() if config.get(key)]:
        raise DarkroomError(f"{files.name} is {others[0]}, which is not supported.", advice="Choose Qwen-Image.")
    return QwenImage(
        spec=QWEN_IMAGE,
        modules=files.parts,
        process=flow_process_of(files.scheduler, CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("qwen_image", files.parts, prediction="flow"),
        reader=prompt_reader(files.parts["text_encoder"], load_chat_tokenizer(files.tokenizers.get("text_encoder"))),
    )
