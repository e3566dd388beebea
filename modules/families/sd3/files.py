"""The files of Stable Diffusion 3 and 3.5: folders, single files, and the names of layers in LoRA files.

kohya's trainers name the transformer's layers as the published checkpoints do, with the projections of queries, keys
and values in one matrix; diffusers' names have the prefix `transformer.`.

Single files contain the transformer with the VAE, and any of the text encoders. The published ones are sd3_medium (no
encoder), sd3_medium_incl_clips, sd3_medium_incl_clips_t5xxlfp8 and sd3.5_large and _medium (no encoder); ComfyUI's have
all three.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from modules.families.kinds.file_kind import WITHOUT, FileKind
from modules.families.parts.linear_layers import LinearLayer, embedding_layers, layer_slots, original_targets, width_of
from modules.families.parts.lora_names import clip_targets
from modules.families.parts.single_file.autoencoder import VAE_PREFIX, vae_layout, vae_names
from modules.families.parts.single_file.detect import denoiser_kind
from modules.families.parts.single_file.record import PartLayout, Shapes, SingleFile
from modules.families.parts.single_file.slots import Slot
from modules.families.parts.single_file.transformer_file import transformer_file
from modules.families.parts.t5_layers import is_unused, t5_slots, t5_targets
from modules.families.parts.unet_clip_file.clip import TEXT_PREFIX, clip_slots
from modules.families.published import Configs, FamilyFiles, PublishedModel
from modules.formats import program_table as table
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.checkpoint_header import CheckpointHeader
from modules.system.problem import with_article

# How files contain the transformer: diffusers' names, and the published checkpoints' names, which ComfyUI reads.
#
# A joint block has the layers of the image (`x_block`) and of the text (`context_block`), with the projections of
# queries, keys and values in one matrix each. The last block has no output for the text, and the halves of its last
# modulation of the text, as of the output's, are in the other order (diffusers'
# `convert_sd3_transformer_checkpoint_to_diffusers`).
Config = Mapping[str, Any]
FIRST_BLOCK = "joint_blocks.0."
"""The beginning of names that every file in the original layout has."""
_EMBEDDED = 256  # the channels of an embedded timestep, in diffusers' class
_MLP_RATIO = 4
_IMAGE_LAYERS, _TEXT_LAYERS = ("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj")


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of an `SD3Transformer2DModel` of this config, and its first one, a convolution."""
    width, side = width_of(config), int(config["patch_size"])
    channels = int(config["in_channels"])
    yield LinearLayer("pos_embed.proj", "x_embedder.proj", (width, channels, side, side))
    embedders = {"timestep": ("t_embedder", _EMBEDDED), "text": ("y_embedder", int(config["pooled_projection_dim"]))}
    for name, (original, columns) in embedders.items():
        yield from embedding_layers(f"time_text_embed.{name}_embedder", original, columns, width)
    context = (int(config["caption_projection_dim"]), int(config["joint_attention_dim"]))
    yield LinearLayer("context_embedder", "context_embedder", context)
    for index in range(int(config["num_layers"])):
        yield from _block(config, index)
    yield LinearLayer("norm_out.linear", "final_layer.adaLN_modulation.1", (2 * width, width), swapped=True)
    patch = side**2 * int(config.get("out_channels") or channels)
    yield LinearLayer("proj_out", "final_layer.linear", (patch, width))


def has_dual_attention(config: Config, index: int) -> bool:
    """Return whether a block has a second attention, of the image alone."""
    return index in tuple(config.get("dual_attention_layers") or ())


def _block(config: Config, index: int) -> Iterator[LinearLayer]:
    """Yield the layers of a joint block; layers that share a matrix in the original layout follow each other."""
    width, is_last = width_of(config), index == int(config["num_layers"]) - 1
    square, inner = (width, width), _MLP_RATIO * width
    ours, image, text = f"transformer_blocks.{index}", *_streams(index)
    has_dual = has_dual_attention(config, index)
    yield LinearLayer(f"{ours}.norm1.linear", f"{image}.adaLN_modulation.1", ((9 if has_dual else 6) * width, width))
    rows = (2 if is_last else 6) * width
    yield LinearLayer(f"{ours}.norm1_context.linear", f"{text}.adaLN_modulation.1", (rows, width), swapped=is_last)
    yield from _attention(f"{ours}.attn", _IMAGE_LAYERS, f"{image}.attn", square, out="to_out.0")
    yield from _attention(f"{ours}.attn", _TEXT_LAYERS, f"{text}.attn", square, out="" if is_last else "to_add_out")
    if has_dual:
        yield from _attention(f"{ours}.attn2", _IMAGE_LAYERS, f"{image}.attn2", square, out="to_out.0")
    for end, theirs in (("", image),) if is_last else (("", image), ("_context", text)):
        yield LinearLayer(f"{ours}.ff{end}.net.0.proj", f"{theirs}.mlp.fc1", (inner, width))
        yield LinearLayer(f"{ours}.ff{end}.net.2", f"{theirs}.mlp.fc2", (width, inner))


def _attention(
    path: str, names: Collection[str], original: str, square: tuple[int, int], *, out: str
) -> Iterator[LinearLayer]:
    for piece, name in enumerate(names):
        yield LinearLayer(f"{path}.{name}", f"{original}.qkv", square, piece, (1, 1, 1))
    if out:
        yield LinearLayer(f"{path}.{out}", f"{original}.proj", square)


def _streams(index: int) -> tuple[str, str]:
    return f"joint_blocks.{index}.x_block", f"joint_blocks.{index}.context_block"


def _slots(config: Config) -> Iterator[Slot]:
    yield Slot("pos_embed.pos_embed", "pos_embed")
    yield from layer_slots(transformer_layers(config))
    if not config.get("qk_norm"):
        return
    for index in range(int(config["num_layers"])):
        image, text = _streams(index)
        ours = f"transformer_blocks.{index}"
        for letter in "qk":
            yield Slot(f"{ours}.attn.norm_{letter}.weight", f"{image}.attn.ln_{letter}.weight")
            yield Slot(f"{ours}.attn.norm_added_{letter}.weight", f"{text}.attn.ln_{letter}.weight")
            if has_dual_attention(config, index):
                yield Slot(f"{ours}.attn2.norm_{letter}.weight", f"{image}.attn2.ln_{letter}.weight")


TRANSFORMER_FILE = transformer_file(
    _slots,
    first=FIRST_BLOCK,
    marks=(".joint_blocks.0.x_block.", ".transformer_blocks.0.norm1_context.linear."),
    diffusers_marks=("transformer_blocks.",),
    others=(".context_embedder.token_refiner.",),  # HunyuanVideo has double blocks of the same names
)


_ENCODERS = {"text_encoder": "clip_l", "text_encoder_2": "clip_g", "text_encoder_3": "t5xxl"}
_PREFIXES = {part: f"text_encoders.{name}.transformer." for part, name in _ENCODERS.items()}
_CLIP = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "projection_dim")
_SHAPING = {
    "transformer": (
        *("num_layers", "num_attention_heads", "attention_head_dim", "joint_attention_dim", "caption_projection_dim"),
        *("pooled_projection_dim", "pos_embed_max_size", "dual_attention_layers", "qk_norm"),
    ),
    "text_encoder": _CLIP,
    "text_encoder_2": _CLIP,
    "text_encoder_3": ("d_model", "d_kv", "d_ff", "num_layers", "num_heads", "vocab_size"),
    "vae": ("block_out_channels", "layers_per_block", "norm_num_groups", "latent_channels", "scaling_factor"),
}


def _is_unused_clip(name: str) -> bool:
    return name.endswith("position_ids")


def _parts(configs: Configs) -> Iterator[PartLayout]:
    yield TRANSFORMER_FILE.layout(configs["transformer"])
    yield vae_layout("vae", configs["vae"])
    for part, prefix in _PREFIXES.items():
        if (config := configs.get(part)) is None:
            continue
        if part == "text_encoder_3":
            yield PartLayout(part, prefix, tuple(t5_slots(config)), is_unused=is_unused)
            continue
        # Files may lack the projection of CLIP-L, which then is the identity.
        identity = int(config["hidden_size"]) if part == "text_encoder" else 0
        slots = clip_slots(config, projection=True)
        slots = tuple(replace(s, identity=identity) if s.key == "text_projection.weight" else s for s in slots)
        yield PartLayout(part, prefix, slots, is_unused=_is_unused_clip, library_prefix=TEXT_PREFIX)


def _original_names(names: Iterable[str]) -> dict[str, str]:
    prefixed = TRANSFORMER_FILE.original_names(names)
    return {original: prefixed[name] for original, name in vae_names(prefixed).items()}


def _configs_of(configs: Configs, shapes: Shapes) -> Configs:
    """Return the configs without those of text encoders that the file lacks."""
    return {n: c for n, c in configs.items() if n not in _PREFIXES or any(s.startswith(_PREFIXES[n]) for s in shapes)}


SINGLE_FILE = SingleFile(
    parts=_parts, original_names=_original_names, configs_of=_configs_of, shaping=_SHAPING, silent={"qk_norm": None}
)


def checkpoint_kind(header: CheckpointHeader, model: PublishedModel) -> FileKind | None:
    """Return the kind of a file of a model, whole or its transformer alone; None for another file."""
    alone = denoiser_kind(header, model, "transformer", TRANSFORMER_FILE, "flow")
    encoders = [part for part, prefix in _PREFIXES.items() if header.has(prefix)]
    has_vae = header.has(VAE_PREFIX, "vae.")
    if alone is None or header.container == "gguf" or not (has_vae or encoders):
        return alone
    absent = [part for part in _PREFIXES if part not in encoders]
    facts = dict(alone.facts)
    facts |= {} if has_vae else {"vae": "missing"}
    if not encoders:
        facts["text_encoders"] = "missing"
    elif absent:
        facts[WITHOUT] = ", ".join(absent)
    lacks = [] if has_vae else ["VAE"]
    lacks += [_ENCODERS[part] for part in absent] if encoders else ["text encoders"]
    scaled = "scaled " if "scaled" in facts else ""
    sentence = f"{with_article(model.label, capital=True)} checkpoint"
    sentence += f", {scaled}{facts['dtype']}" if facts["dtype"] else ""
    sentence += f", without {' and '.join(lacks)}" if lacks else ""
    return replace(alone, kind="checkpoint", sentence=f"{sentence}.", facts=facts, is_whole=True)


_NOT_KOHYA = table.none("does not map kohya's names of this model")
_NOT_COMFY = table.refuses("raises an error: it reads no names of this form")
_T5 = table.none("loads no LoRA of T5")


def _naming_rows(comfy_of_diffusers: table.Answer) -> Mapping[str, table.Row]:
    """Return the answers of programs to the names of layers.

    diffusers was measured, on 2026-11-28; ComfyUI's are the names in its maps, in diffusers' names
    `comfy_of_diffusers`.
    """
    in_diffusers: table.Row = {**table.UNMEASURED, "ComfyUI": comfy_of_diffusers}
    return {
        table.SGM_NAMES: {
            **table.UNMEASURED,
            "ComfyUI": table.ALL,
            "diffusers": _NOT_KOHYA,
            "sd-scripts": {"": table.ALL, "outside": table.UNKNOWN},
        },
        "ComfyUI, original names": {**table.UNMEASURED, "ComfyUI": table.ALL, "diffusers": _NOT_COMFY},
        "ComfyUI, text": {**table.UNMEASURED, "ComfyUI": table.ALL, "diffusers": _NOT_COMFY},
        "PEFT, denoiser": {**in_diffusers, "diffusers": table.ALL},
        table.RAW_PEFT: in_diffusers,
        "SimpleTuner": {**in_diffusers, "diffusers": _NOT_KOHYA},
        "OneTrainer, lora_transformer_": {**in_diffusers, "diffusers": _NOT_KOHYA},
        "kohya, text": {
            **table.UNMEASURED,
            "ComfyUI": {"": table.ALL, "norm": table.UNKNOWN},
            "diffusers": _NOT_KOHYA,
            "sd-scripts": table.ALL,
        },
        "PEFT, text": {**table.UNMEASURED, "diffusers": {"": table.ALL, "T5": _T5}},
    }


def _targets(configs: Configs) -> AdapterTargets:
    layers, matrices = original_targets(transformer_layers(configs["transformer"]))
    text = [
        target
        for part, prefix in (("text_encoder", "lora_te1_"), ("text_encoder_2", "lora_te2_"))
        if part in configs
        for target in clip_targets(part, configs[part], prefix, has_projection=True)
    ]
    if (t5 := "text_encoder_3") in configs:
        text += t5_targets(t5, configs[t5], "lora_te3_")
    return AdapterTargets.of((*layers, *text), matrices)


def _model(name: str, label: str, *, architecture: str, kohya_version: str, repository: str) -> PublishedModel:
    return PublishedModel(
        name=name,
        label=label,
        family="sd3",
        architecture=architecture,
        kohya_version=kohya_version,
        implementation="https://github.com/Stability-AI/sd3.5",
        adapter_targets=_targets,
        comfy_encoders={"text_encoder": "clip_l", "text_encoder_2": "clip_g", "text_encoder_3": "t5xxl"},
        repository=f"stabilityai/{repository}",
        pipelines={"": "StableDiffusion3Pipeline"},
        single_file=SINGLE_FILE,
        embedding_tensors=("clip_l", "clip_g", "t5xxl"),
        programs=("ComfyUI", "Forge", "diffusers"),
        # Its map has no output layer of a second attention.
        naming_rows=_naming_rows(table.UNKNOWN if name == "sd35_medium" else table.ALL),
    )


_MEDIUM = _model(
    "sd3_medium",
    "Stable Diffusion 3 Medium",
    architecture="stable-diffusion-3-medium",
    kohya_version="medium",
    repository="stable-diffusion-3-medium-diffusers",
)
_MEDIUM_35 = _model(
    "sd35_medium",
    "Stable Diffusion 3.5 Medium",
    architecture="stable-diffusion-3-5-medium",
    kohya_version="5-medium",
    repository="stable-diffusion-3.5-medium",
)
_LARGE_35 = _model(
    "sd35_large",
    "Stable Diffusion 3.5 Large",
    architecture="stable-diffusion-3-5-large",
    kohya_version="5-large",
    repository="stable-diffusion-3.5-large",
)


def published_name(config: Mapping[str, Any]) -> str:
    """Return the published model that matches a transformer's config."""
    if config.get("dual_attention_layers"):
        return _MEDIUM_35.name
    return _LARGE_35.name if config.get("qk_norm") else _MEDIUM.name


def _checkpoint(header: CheckpointHeader) -> FileKind | None:
    names = [f".{name}" for name in header.shapes]
    if any(".attn2." in name for name in names):
        model = _MEDIUM_35
    else:
        has_norms = any(".attn.ln_q." in name or ".attn.norm_q." in name for name in names)
        model = _LARGE_35 if has_norms else _MEDIUM
    return checkpoint_kind(header, model)


def _variant_in_name(repository: str) -> str:
    name = repository.lower()
    if "large" in name:
        return _LARGE_35.name
    return _MEDIUM_35.name if "3.5" in name or "35" in name else _MEDIUM.name


FILES = FamilyFiles(
    models=(_MEDIUM_35, _LARGE_35, _MEDIUM),
    pipelines={"StableDiffusion3Pipeline": ""},
    folder_model=lambda facts: published_name(facts.denoiser),
    checkpoint=_checkpoint,
    denoiser_file=TRANSFORMER_FILE,
    lora_words=(("3.5-large", _LARGE_35.name), ("sd3", _MEDIUM_35.name)),
    repository_model=_variant_in_name,
)
