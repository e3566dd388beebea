"""HiDream I1 (HiDream.ai 2025): rectified flow in a transformer of double and single blocks with experts.

Two CLIPs with more positions than usual, T5-XXL and Llama 3.1 8B read the prompts; Meta publishes Llama apart from the
model. Dev and Fast were distilled from Full, for few steps without guidance. The VAE is FLUX.1's.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Interval

from modules.diffusion.flow_convention import ConstantShift, FlowConvention, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.parts.language_models import LLAMA
from modules.families.parts.part_classes import CLIP_TEXT_WITH_PROJECTION, KL_VAE, T5_TEXT, block_presets, t5_prompts
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec, PartSpec
from modules.settings.field import advanced_setting

USUAL_TOKENS, MAX_TOKENS = 128, 218
"""The tokens that each text encoder reads of a prompt, and the most for which CLIP-G has positions."""


class HiDreamSettings(FamilySettings):
    """17 billion weights, of which a token uses two thirds; reads prompts through four text encoders."""

    name: Literal["hidream"] = "hidream"
    text_tokens: Annotated[
        int,
        *Interval(ge=8, le=MAX_TOKENS),
        advanced_setting(
            "Tokens",
            "The number of tokens that each text encoder reads of a prompt. T5 and Llama pad shorter prompts to it, "
            "and the model attends to the padding. The cache of a prompt takes 270 kB for each token in bfloat16.",
            unit="tokens",
        ),
    ] = USUAL_TOKENS

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return the tokens that T5 and Llama read of a prompt, without their end or start token."""
        return self.text_tokens - 1


_HOME = "modules.families.hidream"

TRANSFORMER = ModelClass(
    f"{_HOME}.transformer:HiDreamImageTransformer2DModel",
    ("diffusers.models.transformers.transformer_hidream_image:HiDreamBlock",),
    f"{_HOME}.model:transformer_passes",
    layers=block_presets(r"^(double|single)_stream_blocks\.\d+\.block\.", "attn1", "ff_i|ff_t"),
    # The embeddings of time, prompt and image, the gates of the experts, and the output: small, and sensitive. The
    # modulations of the blocks and the projections of Llama's layers are a sixth of the weights.
    never_quantized=frozenset({"t_embedder", "p_embedder", "x_embedder", "gate", "final_layer"}),
    library="diffusers",
    work=2.5,  # of four experts two compute a token
)
CONVENTION = FlowConvention(output_sign=-1, time_input="1000 sigma", shift=ConstantShift(3.0), sample_grid="scheduler")
HIDREAM = FamilySpec(
    name="hidream",
    label="HiDream I1",
    settings=HiDreamSettings,
    parts=(
        PartSpec("transformer", "Transformer", "denoiser", TRANSFORMER),
        PartSpec("text_encoder", "Text encoder 1 (CLIP-L)", "text_encoder", CLIP_TEXT_WITH_PROJECTION, trainable=False),
        PartSpec(
            "text_encoder_2", "Text encoder 2 (CLIP-G)", "text_encoder", CLIP_TEXT_WITH_PROJECTION, trainable=False
        ),
        PartSpec("text_encoder_3", "Text encoder 3 (T5-XXL)", "text_encoder", T5_TEXT, trainable=False),
        PartSpec(
            "text_encoder_4",
            "Text encoder 4 (Llama 3.1 8B)",
            "text_encoder",
            LLAMA,
            trainable=False,
            published_in=("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        ),
        PartSpec("vae", "VAE", "vae", KL_VAE, trainable=False),
    ),
    size_step_px=16,
    latents=LatentSpec(channels=16, factor=8, overflows_in_float16=True),
    text=t5_prompts(USUAL_TOKENS, encoder="text_encoder_3"),
    process=flow_matching(CONVENTION),
    sample_guidance=5.0,
    distilled=DistilledSpec(
        ("dev", "fast"),
        "Train on HiDream I1 Full, and use the result with Dev or Fast; all have the same layers. Training a distilled "
        "model directly undoes its distillation: its samples will need more steps and guidance. Dev is sampled in 28 "
        "steps, Fast in 16, both with a guidance of 1.",
        steps=28,
    ),
    released="2025-04",
    ai_toolkit=("hidream",),
)
