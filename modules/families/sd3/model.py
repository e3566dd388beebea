"""Stable Diffusion 3 and 3.5: loading them from a diffusers folder, a Hugging Face repository or a single file, and
running their parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import nn

from modules.families.parts.clip_text import TextTower
from modules.families.parts.conditioning import RowConditioning, pooled_name, stack_states
from modules.families.parts.part_classes import CLIP_CHUNK_TOKENS
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.t5_tokens import load_t5_tokenizer
from modules.families.parts.text_model import DenoiserInputs, FlowModel, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.sd3.files import published_name
from modules.families.sd3.spec import SD3, Sd3Settings, unread_queries
from modules.families.spec import FamilySpec
from modules.system.errors import DarkroomError

# The conditioning of Stable Diffusion 3, from the states of each text encoder that the model has.
ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
"""CLIP-L, CLIP-G and T5, in the order in which the transformer gets their states."""
CLIPS = ENCODERS[:2]


@dataclass(frozen=True, eq=False)
class Sd3Conditioning(RowConditioning):
    """The states (B, L, D) of B prompts by text encoder, and the pooled states (B, E) of the CLIPs.

    The states are apart from each other, so a cache entry has no zeros between and behind them.
    """

    encoder_of = MappingProxyType(dict(zip((*ENCODERS, *map(pooled_name, CLIPS)), (0, 1, 2, 0, 1), strict=True)))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Return the conditioning from its `tensors`, of the text encoders that the model has."""
        return cls({name: tensors[name] for name in cls.encoder_of if name in tensors})

    def joint(self, width: int, pooled_width: int, t5_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the transformer's inputs: states (B, 77 + t5_tokens, width), and pooled states (B, pooled_width).

        The states are both CLIPs' side by side, with zeros behind them, and then T5's. Zeros stand for an
        encoder that the model lacks; the states and the pooled states of a CLIP have the same width.
        """
        like = next(iter(self.rows.values()))
        pooled_of = {name: self.rows[pooled_name(name)] for name in CLIPS if pooled_name(name) in self.rows}
        num_clip = CLIP_CHUNK_TOKENS + 2
        behind = sum(t.shape[-1] for name, t in pooled_of.items() if name != ENCODERS[0])
        before = 0 if ENCODERS[0] in self.rows else pooled_width - behind
        clips_BLD = [self.rows[name] for name in CLIPS if name in self.rows]
        clip_BLD = torch.cat(clips_BLD, dim=-1) if clips_BLD else like.new_zeros(len(self), num_clip, 0)
        pooled_BE = torch.cat([like.new_zeros(len(self), 0), *pooled_of.values()], dim=-1)
        before = before if clips_BLD else 0
        t5_BLD = self.rows.get(ENCODERS[2])
        if t5_BLD is None:
            t5_BLD = like.new_zeros(len(self), t5_tokens, width)
        clip_BLD = nn.functional.pad(clip_BLD, (before, width - before - clip_BLD.shape[-1]))
        pooled_BE = nn.functional.pad(pooled_BE, (before, pooled_width - before - pooled_BE.shape[-1]))
        return torch.cat([clip_BLD, t5_BLD], dim=1), pooled_BE


_T5 = ENCODERS[2]


@dataclass(eq=False)
class StableDiffusion3(FlowModel[Sd3Conditioning]):
    """A transformer, up to two CLIPs and a T5-XXL, a VAE; implements `FamilyWithEmbeddings`.

    It sees zeros in place of an encoder that it lacks, `t5_tokens` of them in place of T5's states.
    """

    text_class = Sd3Conditioning

    t5_tokens: int

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer.

        It does not reach the VAE, nor the queries of the text in the last block, whose attention nothing reads.
        """
        if part == self.spec.denoiser.name:
            return not name.startswith(unread_queries(self.denoiser.config))
        return super().reaches(part, name)

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> Sd3Conditioning:
        """Return the states of prompts; all have the same number of tokens, so `padded_like` changes nothing.

        Each CLIP reads the first 75 tokens of a prompt.
        """
        states, pooled = {}, {}
        for name in (name for name in CLIPS if name in self.towers):
            text = self._clip(name).encode(self._forward(name), prompts, num_chunks=1)
            assert text.pooled_BE is not None, "both CLIPs have a projection"
            states[name], pooled[pooled_name(name)] = text.states_BLD, text.pooled_BE
        if _T5 in self.towers:
            states[_T5] = stack_states(self._t5(_T5).encode(self._forward(_T5), prompts))
        return Sd3Conditioning({**states, **pooled})

    def _output(self, given: DenoiserInputs[Sd3Conditioning]) -> torch.Tensor:
        """Return the output (B, 16, H, W)."""
        text, config = given.text, self.denoiser.config
        states_BLD, pooled_BE = text.joint(config.joint_attention_dim, config.pooled_projection_dim, self.t5_tokens)
        return self._denoise(
            hidden_states=given.noisy_BCHW,
            timestep=given.time_B,
            encoder_hidden_states=given.cast(states_BLD),
            pooled_projections=given.cast(pooled_BE),
        )

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        clips = (f"{name} {tower.identity()}" for name, tower in self.towers.items() if name != _T5)
        return "|".join([*clips, self.towers[_T5].identity() if _T5 in self.towers else ""])


def load(request: LoadRequest[Sd3Settings]) -> StableDiffusion3:
    """Load the model with every part on the CPU and frozen.

    Both CLIPs give the states before their last layer, without the final norm. Raises DarkroomError if a file is
    missing or the model is not Stable Diffusion 3.
    """
    files = read_model(request, SD3)
    spec = SD3.without(set(ENCODERS) - files.parts.keys())
    if not spec.names_of("text_encoder"):
        raise DarkroomError(
            f"{request.base_model} has no text encoder that is used.",
            advice="Switch on one of the text encoders, and choose a file for it if the base model has none.",
        )
    settings, config = request.settings, files.parts["transformer"].config
    towers: dict[str, TextTower | T5Tower] = {
        name: files.tower(name, skipped_layers=1 + settings.skipped_layers(name), is_normed=False)
        for name in CLIPS
        if name in files.parts
    }
    if _T5 in files.parts:
        tokenizer = load_t5_tokenizer(files.tokenizers.get(_T5))
        towers[_T5] = T5Tower(
            files.parts[_T5], tokenizer, max_tokens=settings.text_tokens, masks_padding=False, kept_padding=None
        )
    return StableDiffusion3(
        **flow_facts(files, spec, published_name(config)),
        towers=towers,
        t5_tokens=settings.text_tokens,
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of an `SD3Transformer2DModel`; the tokens of a size are T5's, and CLIP's are added."""
    config = transformer.config

    def inputs(size: InputSize) -> dict[str, Any]:
        tokens = size.tokens + CLIP_CHUNK_TOKENS + 2
        return {
            "hidden_states": size.latents(config.in_channels),
            "encoder_hidden_states": torch.empty(size.batch, tokens, config.joint_attention_dim),
            "pooled_projections": torch.empty(size.batch, config.pooled_projection_dim),
            "timestep": size.times(),
        }

    return forward_pass(transformer, spec, inputs, text=["encoder_hidden_states", "pooled_projections"])
