"""Loading HiDream I1 and running it: two CLIPs, T5 and all layers of Llama 3.1 read the prompts.

All four read up to the same number of tokens. The CLIPs have more positions than the usual 77; their pooled states
depend on no padding. T5 and Llama pad, with masks, and the transformer attends to the states of the padding
(`HiDreamImagePipeline`, 0.42).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from modules.families.hidream.spec import HIDREAM, HiDreamSettings
from modules.families.hidream.transformer import RoutedFeedForward
from modules.families.parts.chat_text import ChatReader, ChatTemplate, Padding
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.clip_text import TextTower
from modules.families.parts.conditioning import RowConditioning, pooled_name, stack_states
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.t5_tokens import load_t5_tokenizer
from modules.families.parts.text_model import DenoiserInputs, FlowModel, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec
from modules.system.devices import tensor_on
from modules.system.errors import DarkroomError

ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")
"""CLIP-L, CLIP-G, T5 and Llama."""
CLIPS, T5, LLAMA = ENCODERS[:2], ENCODERS[2], ENCODERS[3]
_START, _END = "<|begin_of_text|>", "<|eot_id|>"


@dataclass(frozen=True, eq=False)
class HiDreamConditioning(RowConditioning):
    """The states of T5 (B, L, D) and of Llama's layers (B, layers, L, D), and the pooled states (B, E) of the CLIPs."""

    encoder_of = MappingProxyType(dict(zip((T5, LLAMA, *map(pooled_name, CLIPS)), (2, 3, 0, 1), strict=True)))

    def inputs(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return the transformer's inputs."""
        return {
            "encoder_hidden_states_t5": self.rows[T5].to(dtype),
            "encoder_hidden_states_llama3": self.rows[LLAMA].to(dtype).transpose(0, 1),
            "pooled_embeds": torch.cat([self.rows[pooled_name(name)] for name in CLIPS], dim=-1).to(dtype),
        }


def pooled_states(
    tower: TextTower, forward: Callable[..., Any], prompts: Sequence[str], max_tokens: int
) -> torch.Tensor:
    """Return a CLIP's pooled states (B, E) of prompts, each read alone up to `max_tokens`."""
    tokenizer, device = tower.tokenizer, next(tower.encoder.parameters()).device
    states = []
    for prompt in prompts:
        ids = [tokenizer.start_id, *tokenizer.ids(prompt)[: max_tokens - 2], tokenizer.end_id]
        states.append(forward(input_ids=tensor_on([ids], device, torch.long)).text_embeds)
    return torch.cat(states)


def llama_reader(encoder: Any, tokenizer: ChatTokenizer, max_tokens: int, *, num_read: int, width: int) -> ChatReader:
    """Return how Llama reads prompts: without a template, padded with the end of a turn, the states of all its layers.

    Raises DarkroomError for a language model of which the transformer cannot read `num_read` layers of a `width`.
    """
    num_layers, own_width = int(encoder.config.num_hidden_layers), int(encoder.config.hidden_size)
    if num_layers < num_read or own_width != width:
        raise DarkroomError(
            f"Text encoder 4 has {num_layers} layers of width {own_width}; the transformer reads {num_read} of width "
            f"{width}.",
            advice="Choose Llama 3.1 8B Instruct.",
        )
    template = ChatTemplate(_START, "")
    padding = Padding(tokenizer.id_of(_END))
    return ChatReader(encoder, tokenizer, template, max_tokens, tuple(range(1, num_layers + 1)), padding=padding)


@dataclass(eq=False)
class HiDream(FlowModel[HiDreamConditioning]):
    """A transformer, two CLIPs, a T5-XXL, a Llama 3.1, a VAE; implements `ModelFamily`."""

    text_class = HiDreamConditioning

    llama: ChatReader

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> HiDreamConditioning:
        """Return the states of prompts; all have the same number of tokens, so `padded_like` changes nothing."""
        t5 = self._t5(T5)
        pooled = {pooled_name(n): pooled_states(self._clip(n), self._forward(n), prompts, t5.max_tokens) for n in CLIPS}
        rows, num_layers = self.llama.encode(self._forward(LLAMA), prompts), len(self.llama.layers)
        llama = [states_LX.unflatten(-1, (num_layers, -1)) for states_LX in rows]
        states = {
            T5: stack_states(t5.encode(self._forward(T5), prompts)),
            LLAMA: stack_states(llama).transpose(1, 2).contiguous(),
        }
        return HiDreamConditioning({**states, **pooled})

    def _output(self, given: DenoiserInputs[HiDreamConditioning]) -> torch.Tensor:
        """Return the output (B, 16, H, W)."""
        text = given.text.inputs(given.noisy_BCHW.dtype)
        return self._denoise(hidden_states=given.noisy_BCHW, timesteps=given.time_B, **text)

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        clips = (f"{name} {self.towers[name].identity()}" for name in CLIPS)
        return "|".join([*clips, self.towers[T5].identity(), self.llama.identity()])


def load(request: LoadRequest[HiDreamSettings]) -> HiDream:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not HiDream I1.
    """
    files = read_model(request, HIDREAM)
    most = request.settings.text_tokens
    t5_tokenizer = load_t5_tokenizer(files.tokenizers.get(T5))
    config = files.parts["transformer"].config
    llama = llama_reader(
        files.parts[LLAMA],
        load_chat_tokenizer(files.tokenizers.get(LLAMA)),
        most,
        num_read=max(config.llama_layers) + 1,
        width=config.caption_channels[1],
    )
    return HiDream(
        **flow_facts(files, HIDREAM, "hidream_i1"),
        towers={
            **{name: files.tower(name, skipped_layers=0, is_normed=True) for name in CLIPS},
            T5: T5Tower(files.parts[T5], t5_tokenizer, max_tokens=most, masks_padding=True, kept_padding=None),
        },
        llama=llama,
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `HiDreamImageTransformer2DModel`; T5 and Llama read the tokens of a size."""
    config = transformer.config
    of_t5, of_llama = config.caption_channels
    for module in transformer.modules():
        if isinstance(module, RoutedFeedForward):
            module.is_traced = True

    def inputs(size: InputSize) -> dict[str, Any]:
        return {
            "hidden_states": size.latents(size.channels),
            "timesteps": size.times(),
            "encoder_hidden_states_t5": size.text(of_t5),
            "encoder_hidden_states_llama3": torch.empty(max(config.llama_layers) + 1, *size.text(of_llama).shape),
            "pooled_embeds": torch.empty(size.batch, config.text_emb_dim),
        }

    text = ["encoder_hidden_states_t5", "encoder_hidden_states_llama3", "pooled_embeds"]
    return forward_pass(transformer, spec, inputs, text=text)
