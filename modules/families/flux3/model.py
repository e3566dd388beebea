"""FLUX.3: loading it from a diffusers folder, a Hugging Face repository, or a file of the transformer; running it.

A prompt is one message of the user with the beginning of an answer. It is padded to a multiple of 80 tokens, and the
transformer attends to the padding, whose states Qwen3-VL makes at position 1, as in its training: newer versions of
transformers would place it elsewhere (`Flux3TextEncoderStep`, 0.42).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from modules.data.inputs import references_of
from modules.families.flux3.spec import (
    EDITING,
    FLUX3,
    LAYERS,
    MAX_TOKENS,
    OF_REFERENCES,
    PADDED_TO,
    Flux3Settings,
)
from modules.families.parts.chat_text import ChatReader, ChatTemplate, StepPadding
from modules.families.parts.chat_tokens import load_chat_tokenizer
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.parts.flux2.forward import text_ids
from modules.families.parts.packing import image_ids, pack, unpack
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import ChatModel, DenoiserInputs, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec
from modules.system.errors import DarkroomError

TEMPLATE = ChatTemplate("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
_PAD, _PAD_POSITION = "<|endoftext|>", 1
_SIDE_IN_POSITIONS = 0.5  # of a token


@dataclass(eq=False)
class Flux3(ChatModel[TokenConditioning]):
    """A transformer, the language model of a Qwen3-VL, a VAE; implements `ModelFamily`.

    The states of a prompt are (L, 8 D), with the padding's: L is a multiple of 80.
    """

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: the transformer's, those for references only in editing."""
        if self.variant == EDITING:
            return super().reaches(part, name)
        return super().reaches(part, name) and not f"{name}.".startswith(OF_REFERENCES)

    def _output(self, given: DenoiserInputs[TokenConditioning]) -> torch.Tensor:
        """Return the output (B, 32, H, W); there may be reference images, of any sizes."""
        text, noisy_BCHW, references = given.text, given.noisy_BCHW, references_of(given.images)
        positions = [_positions(latents, -number) for number, latents in enumerate(references, start=1)]
        output = self._denoise(
            hidden_states=pack(noisy_BCHW),
            encoder_hidden_states=given.cast(text.states_BLD),
            timestep=given.time_B,
            img_ids=_positions(noisy_BCHW, 0),
            txt_ids=text_ids(text.states_BLD),
            encoder_hidden_states_mask=visible_tokens(text.lengths, noisy_BCHW.device),
            image_cond_hidden_states=torch.cat([*map(pack, references)], dim=1) if references else None,
            image_cond_ids=torch.cat(positions) if references else None,
        )
        return unpack(output, *noisy_BCHW.shape[-2:])


def _positions(latents_BCHW: torch.Tensor, number: int) -> torch.Tensor:
    """Return the positions (T, 4) of an image's tokens: 0, row, column and the image's number."""
    return torch.nn.functional.pad(_SIDE_IN_POSITIONS * image_ids(latents_BCHW), (0, 1), value=float(number))


def _require_base(config: Mapping[str, Any], name: str) -> None:
    """Raise DarkroomError for the config of a distilled transformer."""
    if config.get("flow_map"):
        raise DarkroomError(
            f"{name} is FLUX.3 klein, which is distilled: each of its steps also reads the noise level that it jumps "
            "to, which is not supported.",
            advice="Choose FLUX.3 klein base, such as black-forest-labs/flux-3-image-klein-base.",
        )


def load(request: LoadRequest[Flux3Settings]) -> Flux3:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing, or the model is not FLUX.3 or is distilled.
    """
    files = read_model(request, FLUX3, _require_base)
    by_inputs = FLUX3.by_inputs_alone(request.variant)
    tokenizer = load_chat_tokenizer(files.tokenizers.get("text_encoder"))
    return Flux3(
        **flow_facts(files, FLUX3, "flux3", by_inputs=by_inputs),
        reader=ChatReader(
            files.parts["text_encoder"],
            tokenizer,
            TEMPLATE,
            MAX_TOKENS,
            LAYERS,
            padding=StepPadding(tokenizer.id_of(_PAD), step=PADDED_TO, position=_PAD_POSITION),
        ),
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `Flux3Transformer2DModel`, for prompts that are padded to the same length."""
    norms: Iterable[Any] = (module for module in transformer.modules() if isinstance(module, torch.nn.RMSNorm))
    for norm in norms:
        norm.forward = partial(_traced_norm, norm)
    config = transformer.config

    def inputs(size: InputSize) -> dict[str, Any]:
        return {
            "hidden_states": size.patches(config.in_channels),
            "encoder_hidden_states": size.text(config.joint_attention_dim),
            "timestep": size.times(),
            "img_ids": torch.empty(size.num_patches, 4, dtype=torch.float32),
            "txt_ids": torch.empty(size.tokens, 4, dtype=torch.float32),
        }

    return forward_pass(transformer, spec, inputs)


def _traced_norm(norm: Any, states: torch.Tensor) -> torch.Tensor:
    """Return the output of a norm of queries or keys, whose weights and states are always float32."""
    shape = tuple(norm.normalized_shape)
    normed: torch.Tensor = torch.nn.functional.rms_norm(states, shape, norm.weight.float(), norm.eps)
    return normed
