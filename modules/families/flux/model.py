"""FLUX.1: loading it from a diffusers folder or a Hugging Face repository, and running its parts.

Its conditioning is T5's states of all tokens, padding included, and CLIP's state of a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from modules.data.inputs import references_of
from modules.families.flux.files import published_name
from modules.families.flux.spec import FLUX, MAX_TOKENS, PACKED, FluxSettings
from modules.families.parts.clip_text import TextTower, pooled_states
from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.families.parts.conditioning import PooledConditioning, guidance_input, stack_states
from modules.families.parts.packing import image_ids, pack, unpack, with_references
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.t5_tokens import load_t5_tokenizer
from modules.families.parts.text_model import DenoiserInputs, FlowModel, flow_facts
from modules.families.parts.traced_passes import TracedPasses, packed_passes
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec


@dataclass(frozen=True, eq=False)
class FluxConditioning(PooledConditioning):
    """T5's states (B, L, D) of B prompts, CLIP's pooled states (B, E), and the guidance scale of samples.

    The transformer attends to the padding, and its states depend on the prompt, so a cache entry has them, too.
    """

    encoder_of = MappingProxyType({"states": 1, "pooled": 0})

    guidance: float | None = None


_CLIP, _T5 = "text_encoder", "text_encoder_2"


@dataclass(eq=False)
class Flux(FlowModel[FluxConditioning]):
    """A transformer, a CLIP-L, a T5-XXL, a VAE; implements `FamilyWithEmbeddings`.

    `guidance` is the guidance scale that the transformer reads in training.
    """

    text_class = FluxConditioning

    guidance: float

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> FluxConditioning:
        """Return the states of prompts; all have the same number of tokens, so `padded_like` changes nothing."""
        states_BLD = stack_states(self._t5(_T5).encode(self._forward(_T5), prompts))
        clip = self._clip(_CLIP)
        pooled_BE = pooled_states(clip.encoder, clip.tokenizer, self._forward(_CLIP), prompts)
        return FluxConditioning({"states": states_BLD, "pooled": pooled_BE})

    def _output(self, given: DenoiserInputs[FluxConditioning]) -> torch.Tensor:
        """Return the output (B, 16, H, W); the images are Fill's, in the order of its channels, or Kontext's."""
        text, (height, width) = given.text, given.noisy_BCHW.shape[-2:]
        tokens_BLC, ids_L3 = self._tokens(given.noisy_BCHW, given.images)
        output = self._denoise(
            hidden_states=tokens_BLC,
            timestep=given.time_B,
            pooled_projections=given.cast(text.rows["pooled"]),
            encoder_hidden_states=given.cast(text.rows["states"]),
            txt_ids=ids_L3.new_zeros(text.rows["states"].shape[1], 3),
            img_ids=ids_L3,
            **guidance_input(self.denoiser.config, text.guidance, self.guidance, given.time_B),
        )
        num_tokens = (height // PACKED) * (width // PACKED)
        return unpack(output[:, :num_tokens], height, width)

    def _tokens(
        self, noisy_BCHW: torch.Tensor, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the transformer's image tokens (B, L, C) and their positions (L, 3); a reference's are the last."""
        if references := references_of(inputs):
            return with_references(noisy_BCHW, references, step=1.0)  # as `FluxKontextPipeline` does for the first
        further = (inputs[name] for name in self.spec.inputs[self.variant]) if inputs else ()
        return pack(torch.cat([noisy_BCHW, *further], dim=1)), image_ids(noisy_BCHW)

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return f"{self._clip(_CLIP).tokenizer.identity()}|{self._t5(_T5).identity()}"


def load(request: LoadRequest[FluxSettings]) -> Flux:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not FLUX.1.
    """
    files = read_model(request, FLUX)
    config, by_inputs = files.parts["transformer"].config, FLUX.by_inputs_alone(request.variant)
    clip_tokenizer = load_clip_tokenizer(files.tokenizers.get(_CLIP))
    t5 = T5Tower(
        files.parts[_T5],
        load_t5_tokenizer(files.tokenizers.get(_T5)),
        max_tokens=request.settings.tokens_read(MAX_TOKENS - 1, config) + 1,
        masks_padding=False,
        kept_padding=None,
    )
    return Flux(
        **flow_facts(files, FLUX, published_name(config), by_inputs=by_inputs),
        towers={_CLIP: TextTower(files.parts[_CLIP], clip_tokenizer, skipped_layers=0, is_normed=True), _T5: t5},
        guidance=request.settings.guidance,
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `FluxTransformer2DModel`."""
    return packed_passes(transformer, spec, num_axes=3)
