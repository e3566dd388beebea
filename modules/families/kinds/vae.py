"""A file with only a VAE, in the original or in diffusers' layout."""

from __future__ import annotations

from pathlib import Path

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.record import FileKindSpec, Loads, loads_whole
from modules.families.published import ALL_PROGRAMS
from modules.families.registry import FAMILIES
from modules.formats.checkpoint_header import CheckpointHeader

# In a whole model; the EMA weights of a VAE are `model_ema.encoder...`.
_OTHER_PARTS = (
    *("model.diffusion_model.", "diffusion_model.", "model_ema.diffusion_model", "input_blocks.0.0.", "unet."),
    *("cond_stage_model.", "conditioner.", "text_encoder"),
)
_IN_FOLDER = ("diffusion_pytorch_model.safetensors", "vae/diffusion_pytorch_model.safetensors")


def vae_weights_at(path: Path) -> Path:
    """Return the file with the weights of a VAE, which is a file or in a diffusers folder of a VAE or a whole model.

    The path itself if it is a file or has no known file in it.
    """
    return next((file for name in _IN_FOLDER if (file := path / name).is_file()), path)


def vae_kind(header: CheckpointHeader) -> FileKind | None:
    """Return the file's kind if it contains only a VAE, in the original or in diffusers' layout."""
    if header.has(*_OTHER_PARTS):
        return None
    for prefix in ("first_stage_model.", "vae.", ""):
        layout, name, latents = _layout(header, prefix)
        if not name:
            continue
        shape = header.shapes.get(f"{prefix}{latents}", ())
        channels = shape[1] if len(shape) > 1 else 0
        facts = {"layout": layout, "dtype": header.main_dtype, "class": name, "latent_channels": str(channels)}
        with_vae = [spec for spec in FAMILIES.values() if spec.names_of("vae")]
        if channels and channels not in {spec.latents.channels for spec in with_vae}:
            labels = ", ".join(spec.label for spec in with_vae)
            sentence = f"A VAE with {channels} latent channels, which fits none of {labels}."
            return FileKind("other_model", sentence, facts=facts)
        sentence = f"A VAE alone, in the {facts['layout']} layout, {facts['dtype']}."
        return FileKind("vae", sentence, facts=facts)
    return None


def _layout(header: CheckpointHeader, prefix: str) -> tuple[str, str, str]:
    """Return the layout of a VAE's tensors, its class, and the layer behind its latents; empty where there is no VAE.

    If several classes match, it is the one whose layout has more of the names.
    """
    parts = [p for spec in FAMILIES.values() for p in spec.parts]
    matches = []
    for part, file in ((p, p.model.vae_file) for p in parts):
        if file is None:
            continue
        for layout, marks, latents in (
            ("original", file.original, file.original_latents),
            ("diffusers", file.diffusers, file.diffusers_latents),
        ):
            if all(header.has(f"{prefix}{mark}") for mark in marks):
                matches.append((len(marks), (layout, part.class_name, latents)))
    return max(matches, default=(0, ("", "", "")))[1]


def _loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return which programs load a VAE: the web interfaces and ComfyUI load published ones in the original layout,
    without a prefix, and diffusers loads its own layout; other combinations are not known.
    """
    if header is None:  # a folder
        others = (p for p in ALL_PROGRAMS if p != "diffusers")
        return (loads_whole("diffusers", True), *(loads_whole(p, False, "needs a single file") for p in others))
    if header.code:
        return tuple(
            loads_whole(p, False, "not safe to load: it contains code in addition to weights") for p in ALL_PROGRAMS
        )
    if kind.facts.get("layout") == "diffusers":
        known = {"diffusers": loads_whole("diffusers", True, "as diffusion_pytorch_model next to its config.json")}
    elif header.has("encoder.down.0.block."):
        known = {p: loads_whole(p, True) for p in ALL_PROGRAMS if p != "diffusers"}
        known["diffusers"] = loads_whole("diffusers", True, "by AutoencoderKL.from_single_file, with its config")
    else:
        known = {}
    return tuple(known.get(p, loads_whole(p, None)) for p in ALL_PROGRAMS)


VAE = FileKindSpec(
    name="vae",
    label="VAE",
    help="Only the part that encodes images into latents and decodes them.",
    detect=vae_kind,
    uses=frozenset({"VAE"}),
    loads=_loads,
    kept_as="vae",
)
