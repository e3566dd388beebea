"""The files of Wuerstchen 2: folders of the prior, the names of layers in LoRA files, files of the prior alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from modules.families.parts.lora_names import clip_targets, with_clip_g_alone
from modules.families.parts.prior_file import Config, PriorLayers, residual_layers
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_denoiser
from modules.families.published import Configs, PublishedModel
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.program_table import ALL, PROGRAMS, RAW_PEFT, SGM_NAMES, Row, none

# The layers of Wuerstchen's prior, and how files contain it.
_KINDS = 3  # each group of blocks has a residual one, one for the time and attention


def _groups(config: Config) -> range:
    return range(0, _KINDS * int(config["depth"]), _KINDS)


def _layers(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the layers with the shapes of their weights, but for the attention's projections."""
    channels, latents, text, time = (int(config[key]) for key in ("c", "c_in", "c_cond", "c_r"))
    yield "projection", (channels, latents, 1, 1)
    yield "cond_mapper.0", (channels, text)
    yield "cond_mapper.2", (channels, channels)
    for first in _groups(config):
        yield from residual_layers(f"blocks.{first}", channels)
        yield f"blocks.{first + 1}.mapper", (2 * channels, time)
        yield f"blocks.{first + 2}.attention.to_out.0", (channels, channels)
        yield f"blocks.{first + 2}.kv_mapper.1", (channels, channels)
    yield "out.1", (2 * latents, channels, 1, 1)


def _attention(config: Config) -> Iterator[tuple[str, int]]:
    yield from ((f"blocks.{first + 2}.attention", int(config["c"])) for first in _groups(config))


def _residual(config: Config) -> Iterator[str]:
    yield from (f"blocks.{first}" for first in _groups(config))


LAYERS = PriorLayers(_layers, _attention, _residual, kohya_layout="diffusers")
PRIOR_FILE = LAYERS.denoiser_file("cond_mapper.", attention="blocks.2.attention")


_OTHERS: Row = {
    **dict.fromkeys(PROGRAMS, none("does not support this model")),
    "diffusers": none("its pipeline of Wuerstchen knows PEFT's names alone"),
}
_PEFT: Row = {**_OTHERS, "diffusers": ALL}
_NAMING_ROWS: Mapping[str, Row] = {
    **dict.fromkeys(
        (
            *(RAW_PEFT, SGM_NAMES, "kohya, diffusers names", "kohya, text", "kohya, SGM and diffusers names"),
            *("ComfyUI, original names", "ComfyUI, diffusers names", "ComfyUI, text"),
        ),
        _OTHERS,
    ),
    **dict.fromkeys(("PEFT, denoiser", "PEFT, text"), _PEFT),
}


def _targets(configs: Configs) -> AdapterTargets:
    text = clip_targets("text_encoder", configs["text_encoder"], "lora_prior_te_")
    return with_clip_g_alone(AdapterTargets.of((*LAYERS.targets(configs["prior"]), *text)))


MODEL = PublishedModel(
    name="wuerstchen",
    label="Wuerstchen 2",
    family="wuerstchen",
    architecture="wuerstchen-v2-prior",
    kohya_version="wuerstchen_2",
    implementation="https://github.com/dome272/Wuerstchen",
    adapter_targets=_targets,
    comfy_encoders={"text_encoder": "clip_g"},
    pipelines={"": "WuerstchenPriorPipeline"},
    index={"latent_mean": 42.0, "latent_std": 1.0, "resolution_multiple": 42.67},
    single_file=single_denoiser(PRIOR_FILE, "c_in", "c", "c_cond", "c_r", "depth", "nhead", part="prior"),
    embedding_tensors=("clip_g",),
    without_embeddings={"diffusers": "its pipelines of Wuerstchen load no embeddings"},
    programs=("diffusers",),
    naming_rows=_NAMING_ROWS,
    versions={},
    weight_bytes=4,
)
FILES = files_of_one_model(MODEL, PRIOR_FILE, "wuerstchen", part="prior", prediction="epsilon")
