"""The classes of FLUX.2's parts, its process, and the settings of its models, torch-free (Black Forest Labs, 2025).

The transformer has double-stream and single-stream blocks like FLUX.1's; all blocks of a kind share one modulation, a
single block has one matrix before its attention and MLP and one behind them, and no layer has a bias. The latents are
normalised by a batch norm over patches of 2 x 2.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import Interval

from modules.data.references import ReferenceSizes
from modules.diffusion.flow_convention import FlowConvention, StepsShift, TokenShift
from modules.families.model_class import ModelClass, VaeFile
from modules.families.parts.language_models import chat_prompts
from modules.families.parts.part_classes import KL_VAE
from modules.families.settings import FamilySettings
from modules.families.spec import LatentSpec, TextSpec
from modules.settings.field import advanced_setting
from modules.settings.layer_filter import LayerFilter

_HOME = "modules.families.parts.flux2"
_CLASSES = "diffusers.models.transformers.transformer_flux2"
_DOUBLE, _SINGLE = r"^transformer_blocks\.\d+\.", r"^single_transformer_blocks\.\d+\."
MAX_TOKENS = 512
"""The tokens of a prompt in its template, with its padding (`Flux2Pipeline`, `Flux2KleinPipeline`)."""

TRANSFORMER = ModelClass(
    f"{_CLASSES}:Flux2Transformer2DModel",
    (f"{_CLASSES}:Flux2TransformerBlock", f"{_CLASSES}:Flux2SingleTransformerBlock"),
    f"{_HOME}.forward:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    # A single block's attention and MLP are in the same two matrices.
    layers={
        "attention_mlp": LayerFilter((rf"{_DOUBLE}(attn|ff|ff_context)\.", rf"{_SINGLE}attn\."), is_regex=True),
        "attention": LayerFilter((rf"{_DOUBLE}attn\.", rf"{_SINGLE}attn\."), is_regex=True),
        "blocks": LayerFilter((_DOUBLE, _SINGLE), is_regex=True),
    },
    # The embeddings of time, guidance, text and image, the output, and the modulations, which all blocks share.
    never_quantized=frozenset(
        {
            *("time_guidance_embed", "context_embedder", "x_embedder", "norm_out", "^proj_out"),
            *("double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation"),
        }
    ),
    work=3.5,
)
VAE = ModelClass(
    "diffusers.models.autoencoders.autoencoder_kl_flux2:AutoencoderKLFlux2",
    KL_VAE.transformer_blocks,
    KL_VAE.passes,
    KL_VAE.other_blocks,
    vae_file=VaeFile(
        f"{_HOME}.files:vae_slots",
        original=("encoder.down.0.block.", "bn.running_mean"),
        diffusers=("encoder.down_blocks.0.resnets.", "bn.running_mean"),
    ),
)
REFERENCE_SIZES = ReferenceSizes(16)
"""The sizes of reference images: up to 1024 x 1024 pixels (`Flux2Pipeline`, `Flux2KleinPipeline`)."""
LATENTS = LatentSpec(channels=32, factor=8, packed=2, overflows_in_float16=True)
CONVENTION = FlowConvention(shift=TokenShift(), sample_shift=StepsShift())


def prompts(template_tokens: int) -> TextSpec:
    """Return how prompts are read: up to 512 tokens with the template's, and three states of each."""
    return chat_prompts(MAX_TOKENS - template_tokens, "joint_attention_dim", states_read=3)


class Flux2Settings(FamilySettings):
    """The tokens of a prompt."""

    text_tokens: Annotated[
        int | None,
        *Interval(ge=64, le=MAX_TOKENS),
        advanced_setting(
            "Text tokens",
            "The number of tokens that the text encoder reads of each prompt, including the template's; shorter "
            "prompts are padded to it, and the model attends to the padding. Fewer need less memory and smaller "
            "caches, but differ from what other programs do.",
            unit="tokens",
            empty_means="512",
        ),
    ] = None

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return the number of tokens that are read of a prompt, without the template's."""
        return most if self.text_tokens is None else most - (MAX_TOKENS - self.text_tokens)

    @property
    def padded_tokens(self) -> int:
        """The tokens of every prompt, with the template and the padding."""
        return MAX_TOKENS if self.text_tokens is None else self.text_tokens
