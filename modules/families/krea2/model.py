"""Krea 2: loading it from a diffusers folder, a Hugging Face repository, or a file of the transformer; running it.

Prompts are the states of several layers of Qwen3-VL's language model, in the template of Qwen-Image: a sentence of the
system and one message of the user, with the beginning of an answer. The states of the template's first part are cut
off; its end is kept. diffusers' pipeline puts padding between the prompt and that end, masked, with positions that do
not count it: the states are the same as without it (`Krea2Pipeline`, 0.42).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from diffusers.models.transformers.transformer_krea2 import Krea2RMSNorm

from modules.families.krea2.spec import KREA2, MAX_TOKENS, TURBO_MU, Krea2Settings
from modules.families.parts.chat_text import DESCRIBE_IMAGE, ChatReader
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.parts.files import ModelFiles
from modules.families.parts.packing import image_ids, pack, unpack
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import ChatModel, DenoiserInputs, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec
from modules.formats.diffusers_folder import read_json
from modules.system.errors import DarkroomError


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer, layers: tuple[int, ...]) -> ChatReader:
    """Return how prompts are read. The part of the template that is cut off has 34 tokens in Qwen's vocabulary."""
    dropped = tokenizer.count(DESCRIBE_IMAGE.before)
    most = dropped + MAX_TOKENS
    return ChatReader(encoder, tokenizer, DESCRIBE_IMAGE, most, layers, dropped=dropped, keeps_end=True)


def read_layers(num_layers: int, num_read: int, given: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return which of a text encoder's hidden states the transformer reads, as indices of `hidden_states`.

    `given` are those in the model's index (`text_encoder_select_layers`). Without them they are `num_read` of the
    encoder's `num_layers` at even distances: 2, 5, ..., 35 of 36. Raises DarkroomError for layers that it does not
    have.
    """
    step = num_layers // num_read
    layers = tuple(given) if given else tuple(range(step - 1, step * num_read, step)) if step else ()
    if len(layers) != num_read or not all(0 <= layer <= num_layers for layer in layers):
        raise DarkroomError(
            f"The text encoder has {num_layers} layers, of which the transformer cannot read {num_read}.",
            advice="Choose a base model whose text encoder is Krea 2's.",
        )
    return layers


@dataclass(eq=False)
class Krea2(ChatModel[TokenConditioning]):
    """A transformer, the language model of a Qwen3-VL, a VAE; implements `ModelFamily`.

    The states of a prompt are (L, K D): the states of K layers of the text encoder, one after the other.
    """

    def _output(self, given: DenoiserInputs[TokenConditioning]) -> torch.Tensor:
        """Return the output (B, 16, H, W). The positions of text are 0; equally long prompts need no mask."""
        text, packed_BLC, ids_L3 = given.text, pack(given.noisy_BCHW), image_ids(given.noisy_BCHW)
        output = self._denoise(
            hidden_states=packed_BLC,
            encoder_hidden_states=given.cast(text.states_BLD).unflatten(-1, (len(self.reader.layers), -1)),
            timestep=given.time_B,
            position_ids=torch.cat([ids_L3.new_zeros(text.states_BLD.shape[1], 3), ids_L3]),
            encoder_attention_mask=visible_tokens(text.lengths, packed_BLC.device),
        )
        return unpack(output, *given.noisy_BCHW.shape[-2:])

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return f"{super().text_identity()}|{self.reader.layers}"


def load(request: LoadRequest[Krea2Settings]) -> Krea2:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Krea 2.
    """
    files = read_model(request, KREA2)
    index = read_json(files.folder, "model_index.json") if files.folder is not None else {}
    scheduler = _scheduler_of(files, index, request.part_files.get("transformer") or request.base_model)
    encoder, transformer = (files.parts[name].config for name in ("text_encoder", "transformer"))
    given = index.get("text_encoder_select_layers")
    layers = read_layers(encoder.num_hidden_layers, transformer.num_text_layers, given)
    tokenizer = load_chat_tokenizer(files.tokenizers.get("text_encoder"))
    return Krea2(
        **flow_facts(replace(files, scheduler=scheduler), KREA2, "krea2"),
        reader=prompt_reader(files.parts["text_encoder"], tokenizer, layers),
    )


def _scheduler_of(files: ModelFiles, index: Mapping[str, Any], denoiser: str) -> Mapping[str, Any]:
    """Return the scheduler's config, for Turbo with its one shift for all sizes, which is not in its config.

    `denoiser` is the name of the model or the file with the transformer: the index is the base model's.
    """
    distilled = KREA2.distilled
    assert distilled is not None
    is_turbo = distilled.is_named(denoiser)
    if not is_turbo and denoiser == files.name:
        is_turbo = bool(index.get(distilled.index_key)) and not distilled.is_undone(denoiser)
    if not is_turbo:
        return files.scheduler
    return {**files.scheduler, "use_dynamic_shifting": True, "base_shift": TURBO_MU, "max_shift": TURBO_MU}


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `Krea2Transformer2DModel`, with the mask that prompts of several lengths need.

    The recording includes that its attention repeats each head of keys and values for the queries that share it.
    """
    for norm in (module for module in transformer.modules() if isinstance(module, Krea2RMSNorm)):
        norm.forward = partial(_traced_norm, norm)
    config = transformer.config

    def inputs(size: InputSize) -> dict[str, Any]:
        return {
            "hidden_states": size.patches(config.in_channels),
            "encoder_hidden_states": torch.empty(
                size.batch, size.tokens, config.num_text_layers, config.text_hidden_dim
            ),
            "timestep": size.times(),
            "position_ids": torch.empty(size.tokens + size.num_patches, 3, dtype=torch.float32),
            "encoder_attention_mask": size.mask(),
        }

    return forward_pass(transformer, spec, inputs)


def _traced_norm(norm: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Return the output of a `Krea2RMSNorm`, whose weights always stay in float32."""
    weight = norm.weight.float() + 1.0
    normalized: torch.Tensor = torch.nn.functional.rms_norm(hidden_states.float(), (norm.dim,), weight, norm.eps)
    return normalized.to(hidden_states.dtype)
