"""PixArt alpha and sigma: loading them from a diffusers folder or a Hugging Face repository, and running their
parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from modules.diffusion.process import DDPMProcess
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.parts.lora_names import naming_of
from modules.families.parts.noise_process import process_of
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.t5_tokens import load_lower_case_t5_tokenizer
from modules.families.parts.text_model import DenoiserInputs, T5Model
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.pixart.files import published_name
from modules.families.pixart.spec import MAX_TOKENS, PIXART, PixArtSettings, has_size_conditions
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec


@dataclass(eq=False)
class PixArt(T5Model[DDPMProcess]):
    """A transformer, a T5-XXL, a VAE; implements `FamilyWithEmbeddings`."""

    def _output(self, given: DenoiserInputs[TokenConditioning]) -> torch.Tensor:
        """Return the output (B, 4, H, W).

        The published models also predict its variance, in as many channels behind it: no loss reaches these, and no
        sampler reads them (as in diffusers' pipelines and the authors' training script for diffusers).
        """
        noise_BCHW = self._denoise(
            hidden_states=given.noisy_BCHW,
            timestep=given.time_B,
            encoder_hidden_states=given.cast(given.text.states_BLD),
            encoder_attention_mask=visible_tokens(given.text.lengths, given.noisy_BCHW.device),
            added_cond_kwargs=self._sizes(given.noisy_BCHW),
        )
        return noise_BCHW[:, : given.noisy_BCHW.shape[1]]

    def _sizes(self, noisy_BCHW: torch.Tensor) -> dict[str, torch.Tensor | None]:
        """Return the size conditions: height and width in pixels, as they are sampled, and their ratio."""
        if not has_size_conditions(self.denoiser.config):
            return {"resolution": None, "aspect_ratio": None}
        sides_B2 = noisy_BCHW.new_ones(len(noisy_BCHW), 2, dtype=torch.float32)
        height, width = map(self.spec.latents.px, noisy_BCHW.shape[-2:])
        sides_B2[:, 0], sides_B2[:, 1] = height, width
        return {"resolution": sides_B2, "aspect_ratio": sides_B2[:, :1] / sides_B2[:, 1:]}


def load(request: LoadRequest[PixArtSettings]) -> PixArt:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not PixArt.
    """
    files = read_model(request, PIXART)
    config = files.parts["transformer"].config
    t5 = T5Tower(
        files.parts["text_encoder"],
        load_lower_case_t5_tokenizer(files.tokenizers.get("text_encoder")),
        max_tokens=request.settings.tokens_read(MAX_TOKENS - 1, config) + 1,
        masks_padding=True,
        kept_padding=0,
    )
    process = process_of(files.scheduler, name=files.name)
    return PixArt(
        spec=PIXART,
        modules=files.parts,
        process=process,
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of(published_name(config), files.parts, prediction=process.prediction_type),
        towers={"text_encoder": t5},
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `PixArtTransformer2DModel`, with the mask that prompts of several lengths need."""
    config = transformer.config

    def inputs(size: InputSize) -> dict[str, Any]:
        made: dict[str, Any] = {
            "hidden_states": size.latents(config.in_channels),
            "encoder_hidden_states": size.text(config.caption_channels),
            "encoder_attention_mask": size.mask(),
            "timestep": size.times(),
        }
        if has_size_conditions(config):
            made["added_cond_kwargs"] = {
                "resolution": torch.empty(size.batch, 2, dtype=torch.float32),
                "aspect_ratio": torch.empty(size.batch, 1, dtype=torch.float32),
            }
        return made

    return forward_pass(transformer, spec, inputs)
