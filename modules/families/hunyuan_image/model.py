"""HunyuanImage 2.1: loading it from a diffusers folder, a Hugging Face repository, or files of its parts; running it.

Its conditioning is Qwen2.5-VL's states of a prompt's tokens, without the template before it, and ByT5's states
of the text in its quotes; a prompt without quotes has none. No state depends on padding, and the transformer attends to
the states of both encoders alike, wherever they are in the sequence (`HunyuanImagePipeline`, 0.42).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from modules.families.hunyuan_image.spec import (
    GLYPH_LAYERS,
    GLYPH_TOKENS,
    HUNYUAN_IMAGE,
    MAX_TOKENS,
    HunyuanImageSettings,
    glyph_text,
)
from modules.families.parts.chat_text import DESCRIBE_IMAGE, ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.conditioning import TokenConditioning, token_mask
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.t5_tokens import byte_tokenizer
from modules.families.parts.text_model import ChatModel, DenoiserInputs, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec
from modules.system.devices import Device
from modules.system.errors import DarkroomError

TEMPLATE = ChatTemplate(DESCRIBE_IMAGE.before, "<|im_end|>")
DROPPED = 34
"""The tokens of the template before a prompt (`HunyuanImagePipeline`)."""
_LAYER = -3  # the state before the last two layers
_QWEN, _BYT5 = "text_encoder", "text_encoder_2"
_GLYPHS = "glyphs"


@dataclass(frozen=True, eq=False)
class HunyuanImageConditioning:
    """The states of B prompts, and of the text in their quotes, each of different lengths."""

    text: TokenConditioning
    glyphs: TokenConditioning

    def __len__(self) -> int:
        return len(self.text)

    def to(self, device: Device, dtype: torch.dtype | None = None) -> Self:
        """Move it to a device, and to a dtype if one is given."""
        return type(self)(self.text.to(device, dtype), self.glyphs.to(device, dtype))

    def select(self, indices: Sequence[int]) -> Self:
        """Return the conditioning of some of the prompts, in that order."""
        return type(self)(self.text.select(indices), self.glyphs.select(indices))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, for a cache entry; tensors of quoted text only if there is any."""
        if not any(self.glyphs.lengths):
            return self.text.tensors()
        return {**self.text.tensors(), **{_glyph_name(n): tensor for n, tensor in self.glyphs.tensors().items()}}

    def with_empty_prompts(self, empty_for: Sequence[Collection[int]], empty: Self) -> Self:
        """Return it with the empty prompt's states for the encoders, Qwen2.5-VL (0) and ByT5 (1), of each prompt."""
        kept = [s[:0] if 1 in e else s for e, s in zip(empty_for, self.glyphs.split(), strict=True)]
        return type(self)(self.text.with_empty_prompts(empty_for, empty.text), TokenConditioning.of(kept))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Return the conditioning from its `tensors`. Raises KeyError if one is missing."""
        text = TokenConditioning.from_tensors(tensors)
        named = {name: tensors[_glyph_name(name)] for name in ("states", "lengths") if _glyph_name(name) in tensors}
        if named:
            return cls(text, TokenConditioning.from_tensors(named))
        return cls(text, TokenConditioning(text.states_BLD.new_zeros(len(text), 0, 0), (0,) * len(text)))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join conditionings into one."""
        glyphs = [states_LD for part in parts for states_LD in part.glyphs.split()]
        width = max(states_LD.shape[1] for states_LD in glyphs)
        aligned = [states_LD if len(states_LD) else states_LD.new_zeros(0, width) for states_LD in glyphs]
        return cls(TokenConditioning.join([part.text for part in parts]), TokenConditioning.of(aligned))


def _glyph_name(name: str) -> str:
    return f"{_GLYPHS}_{name}"


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer) -> ChatReader:
    """Return how the language model reads prompts: in the template, without padding."""
    return ChatReader(encoder, tokenizer, TEMPLATE, DROPPED + MAX_TOKENS, layers=(_LAYER,), dropped=DROPPED)


@dataclass(eq=False)
class HunyuanImage(ChatModel[HunyuanImageConditioning]):
    """A transformer, the language model of a Qwen2.5-VL, a ByT5, a VAE; implements `ModelFamily`."""

    text_class = HunyuanImageConditioning

    byt5: T5Tower

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a layer is trained: the transformer's layers, except those that only read quoted text."""
        return super().reaches(part, name) and not f"{name}.".startswith(GLYPH_LAYERS)

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> HunyuanImageConditioning:
        """Return the states of prompts. None depends on the others, so `padded_like` changes nothing."""
        text = TokenConditioning.of(self.reader.encode(self._forward(_QWEN), prompts))
        width, first = int(self.byt5.encoder.config.d_model), next(self.byt5.encoder.parameters())
        quoted = [glyph_text(prompt) for prompt in prompts]
        read = iter(self.byt5.encode(self._forward(_BYT5), [q for q in quoted if q]))
        none_LD = torch.zeros(0, width, device=text.states_BLD.device, dtype=first.dtype)
        return HunyuanImageConditioning(text, TokenConditioning.of([next(read) if q else none_LD for q in quoted]))

    def _output(self, given: DenoiserInputs[HunyuanImageConditioning]) -> torch.Tensor:
        """Return the output (B, 64, H, W)."""
        text, device = given.text, given.noisy_BCHW.device
        further: dict[str, torch.Tensor] = {}
        if any(text.glyphs.lengths):
            further["encoder_hidden_states_2"] = given.cast(text.glyphs.states_BLD)
            further["encoder_attention_mask_2"] = token_mask(text.glyphs.lengths, device)
        return self._denoise(
            hidden_states=given.noisy_BCHW.contiguous(),  # as they are in a cache: the last bits depend on it
            timestep=given.time_B,
            encoder_hidden_states=given.cast(text.text.states_BLD),
            encoder_attention_mask=token_mask(text.text.lengths, device),
            **further,
        )

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return f"{self.reader.identity()}|{self.byt5.identity()}"


def _require_base(config: Mapping[str, Any], name: str) -> None:
    """Raise DarkroomError for the config of a distilled transformer."""
    if config.get("use_meanflow"):
        raise DarkroomError(
            f"{name} is the distilled HunyuanImage 2.1, whose steps also read the next noise level, which is not "
            "supported.",
            advice="Choose HunyuanImage 2.1; what is trained on it can be used with the distilled model.",
        )


def load(request: LoadRequest[HunyuanImageSettings]) -> HunyuanImage:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not HunyuanImage 2.1.
    """
    files = read_model(request, HUNYUAN_IMAGE, _require_base)
    tower = T5Tower(files.parts[_BYT5], byte_tokenizer(), GLYPH_TOKENS, masks_padding=True, kept_padding=0)
    return HunyuanImage(
        **flow_facts(files, HUNYUAN_IMAGE, "hunyuan_image"),
        reader=prompt_reader(files.parts[_QWEN], load_chat_tokenizer(files.tokenizers.get(_QWEN))),
        byt5=tower,
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `HunyuanImageTransformer2DModel`, for prompts without quoted text.

    With quoted text the number of tokens depends on the values of a mask, which a traced pass does not have.
    """
    config = transformer.config
    of_distilled = ("timestep_r", "guidance") if config.use_meanflow else ()

    def inputs(size: InputSize) -> dict[str, Any]:
        return {
            "hidden_states": size.latents(size.channels),
            "timestep": size.times(),
            "encoder_hidden_states": size.text(config.text_embed_dim),
            "encoder_attention_mask": size.mask(),
            **{name: size.times() for name in of_distilled},
        }

    return forward_pass(transformer, spec, inputs)
