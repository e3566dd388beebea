"""The files of Stable Cascade: folders of the prior, the names of layers in LoRA files, files of the prior alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from modules.families.parts.lora_names import clip_targets, with_clip_g_alone
from modules.families.parts.prior_file import Config, PriorLayers, residual_layers
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_denoiser
from modules.families.published import Configs, PublishedModel
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.program_table import RAW_PEFT, SGM_NAMES, UNMEASURED, Row, none

# The layers of Stable Cascade's prior, and how files contain it.


def prior_layers(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the layers of a prior with the shapes of their weights, but for the attention's projections."""
    channels = [int(n) for n in config["block_out_channels"]]
    text, width, sequence = (int(config[key]) for key in ("clip_text_in_channels", "conditioning_dim", "clip_seq"))
    pooled, image = int(config["clip_text_pooled_in_channels"]), int(config["clip_image_in_channels"])
    yield "clip_txt_pooled_mapper", (width * sequence, pooled)
    yield "clip_txt_mapper", (width, text)
    yield "clip_img_mapper", (width * sequence, image)
    patch = int(config["patch_size"]) ** 2
    yield "embedding.1", (channels[0], int(config["in_channels"]) * patch, 1, 1)
    for before, level in zip(channels, range(1, len(channels)), strict=False):
        yield f"down_downscalers.{level}.1.blocks.0", (channels[level], before, 1, 1)
        yield f"up_upscalers.{len(channels) - 1 - level}.1.blocks.1", (before, channels[level], 1, 1)
    for block, channel, kind, skipped in _blocks(config):
        yield from _block_layers(block, channel, kind, skipped, config)
    yield "clf.1", (int(config["out_channels"]) * patch, channels[0], 1, 1)


def attention_blocks(config: Config) -> Iterator[tuple[str, int]]:
    """Yield the path of each attention with its width."""
    yield from ((f"{block}.attention", channel) for block, channel, kind, _ in _blocks(config) if "Attn" in kind)


def _blocks(config: Config) -> Iterator[tuple[str, int, str, int]]:
    """Yield the path of each block, its width, its class, and the channels of the skip connection into it."""
    channels, kinds = [int(n) for n in config["block_out_channels"]], config["block_types_per_layer"]
    levels = len(channels)
    for level, channel in enumerate(channels):
        names = [kind for _ in range(int(config["down_num_layers_per_block"][level])) for kind in kinds[level]]
        for index, kind in enumerate(names):
            yield f"down_blocks.{level}.{index}", channel, kind, 0
    for place, level in enumerate(reversed(range(levels))):
        number = int(config["up_num_layers_per_block"][place])
        for index, kind in enumerate([kind for _ in range(number) for kind in kinds[level]]):
            skipped = channels[level] if place > 0 and index == 0 else 0
            yield f"up_blocks.{place}.{index}", channels[level], kind, skipped


def _block_layers(
    block: str, channel: int, kind: str, skipped: int, config: Config
) -> Iterator[tuple[str, tuple[int, ...]]]:
    if "Res" in kind:
        yield from residual_layers(block, channel, skipped, int(config["kernel_size"]))
    elif "Timestep" in kind:
        for name in ("mapper", *(f"mapper_{name}" for name in config["timestep_conditioning_type"])):
            yield f"{block}.{name}", (2 * channel, int(config["timestep_ratio_embedding_dim"]))
    else:
        yield f"{block}.attention.to_out.0", (channel, channel)
        yield f"{block}.kv_mapper.1", (channel, int(config["conditioning_dim"]))


def _residual_blocks(config: Config) -> Iterator[str]:
    yield from (block for block, _, kind, _ in _blocks(config) if "Res" in kind)


LAYERS = PriorLayers(prior_layers, attention_blocks, _residual_blocks)
# The third of three blocks in the models of both sizes is attention.
PRIOR_FILE = LAYERS.denoiser_file("clip_txt_mapper.", attention="down_blocks.0.2.attention")


_OTHERS: Row = {
    **UNMEASURED,
    "diffusers": none("its pipelines of Stable Cascade load no LoRA"),
    **dict.fromkeys(("diffusers 0.31", "sd-scripts"), none("does not support this model")),
}
_NAMING_ROWS: Mapping[str, Row] = dict.fromkeys(
    (
        *("PEFT, denoiser", "PEFT, text", RAW_PEFT, SGM_NAMES, "kohya, diffusers names", "kohya, text"),
        *("kohya, SGM and diffusers names", "ComfyUI, original names", "ComfyUI, diffusers names", "ComfyUI, text"),
    ),
    _OTHERS,
)


def _targets(configs: Configs) -> AdapterTargets:
    text = clip_targets("text_encoder", configs["text_encoder"], "lora_prior_te_", has_projection=True)
    return with_clip_g_alone(AdapterTargets.of((*LAYERS.targets(configs["prior"]), *text)))


MODEL = PublishedModel(
    name="stable_cascade",
    label="Stable Cascade",
    family="stable_cascade",
    architecture="stable-cascade-v1-prior",
    implementation="https://github.com/Stability-AI/StableCascade",
    adapter_targets=_targets,
    comfy_encoders={"text_encoder": "clip_g"},
    pipelines={"": "StableCascadePriorPipeline"},
    index={"image_encoder": [None, None], "feature_extractor": [None, None], "resolution_multiple": 42.67},
    single_file=single_denoiser(
        PRIOR_FILE,
        *("block_out_channels", "down_num_layers_per_block", "up_num_layers_per_block", "conditioning_dim"),
        *("num_attention_heads", "block_types_per_layer", "clip_text_in_channels", "clip_image_in_channels"),
        "clip_text_pooled_in_channels",
        part="prior",
    ),
    embedding_tensors=("clip_g",),
    without_embeddings={"diffusers": "its pipelines of Stable Cascade load no embeddings"},
    naming_rows=_NAMING_ROWS,
    versions={},
    weight_bytes=4,
)
FILES = files_of_one_model(MODEL, PRIOR_FILE, "stable-cascade", "stable_cascade", part="prior", prediction="epsilon")
