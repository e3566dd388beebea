"""A loaded FLUX.2: the only code that runs its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from modules.data.inputs import references_of
from modules.families.parts.conditioning import TokenConditioning, guidance_input
from modules.families.parts.flux2.classes import LATENTS
from modules.families.parts.packing import unpack, with_references
from modules.families.parts.text_model import ChatModel, DenoiserInputs
from modules.families.parts.traced_passes import TracedPasses, packed_passes
from modules.families.spec import FamilySpec

_REFERENCE_STEP = 10.0  # between the first numbers of the positions of reference images (`Flux2Pipeline`)


@dataclass(frozen=True, eq=False)
class Flux2Conditioning(TokenConditioning):
    """Text states (B, L, D) including the padding, to which the transformer attends, and a guidance scale."""

    guidance: float | None = None


@dataclass(eq=False)
class Flux2(ChatModel[Flux2Conditioning]):
    """A transformer, a language model, a VAE; implements `ModelFamily`.

    `guidance` is the guidance scale in training of a transformer that reads one.
    """

    text_class = Flux2Conditioning

    guidance: float = 1.0

    def _output(self, given: DenoiserInputs[Flux2Conditioning]) -> torch.Tensor:
        """Return the output (B, 32, H, W); there may be reference images, of any sizes."""
        text, noisy_BCHW = given.text, given.noisy_BCHW
        tokens_BLC, ids_L3 = with_references(noisy_BCHW, references_of(given.images), step=_REFERENCE_STEP)
        height, width = noisy_BCHW.shape[-2:]
        output_BLC = self._denoise(
            hidden_states=tokens_BLC,
            timestep=given.time_B,
            encoder_hidden_states=given.cast(text.states_BLD),
            txt_ids=text_ids(text.states_BLD),
            img_ids=torch.nn.functional.pad(ids_L3, (0, 1)),
            **guidance_input(self.denoiser.config, text.guidance, self.guidance, given.time_B),
        )
        num_tokens = (height // LATENTS.packed) * (width // LATENTS.packed)
        return unpack(output_BLC[:, :num_tokens], height, width)


def text_ids(states_BLD: torch.Tensor) -> torch.Tensor:
    """Return the positions (L, 4) of text tokens: 0, 0, 0 and the index."""
    index_L = torch.arange(states_BLD.shape[1], device=states_BLD.device, dtype=torch.float32)
    return torch.nn.functional.pad(index_L[:, None], (3, 0))


# The forward pass of FLUX.2's transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `Flux2Transformer2DModel`."""
    return packed_passes(transformer, spec, num_axes=4)
