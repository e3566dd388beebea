"""The single files of Stable Diffusion 3 and 3.5: the transformer with the VAE, and any of the text encoders.

The published files are sd3_medium (no encoder), sd3_medium_incl_clips, sd3_medium_incl_clips_t5xxlfp8 and
sd3.5_large and _medium (no encoder); ComfyUI's have all three.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from modules.families.kinds.file_kind import WITHOUT, FileKind
from modules.families.parts.single_file.autoencoder import VAE_PREFIX, vae_layout, vae_names
from modules.families.parts.single_file.detect import denoiser_kind
from modules.families.parts.single_file.record import Configs, PartLayout, Shapes, SingleFile
from modules.families.parts.t5_layers import is_unused, t5_slots
from modules.families.parts.unet_clip_file.clip import TEXT_PREFIX, clip_slots
from modules.families.published import PublishedModel
from modules.families.sd3.transformer_file import TRANSFORMER_FILE
from modules.formats.checkpoint_header import CheckpointHeader
from modules.system.problem import with_article

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
    """Return the configs without those of the text encoders that the file lacks."""
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
