"""The layers of a UNet and of CLIP text encoders that adapter files can change, by every name that files have for them.

kohya form: a prefix per part and the path with underscores; the UNet's path is diffusers' or the original ("SGM") one,
as kohya's trainers write it for the model. Names of text layers contain "text_model". Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from modules.families.parts.lora_shapes import text_shapes, unet_shapes
from modules.families.parts.single_file.clip_layout import PREFIX as TEXT_PREFIX
from modules.families.parts.single_file.unet_layout import unet_layers
from modules.families.published import Configs, TargetsOf
from modules.families.registry import published
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets

_UNET_PREFIX = "lora_unet_"
_CLIP_MODULES = ("encoder.layers.", "embeddings.", "final_layer_norm")


def unet_clip_targets(
    text_prefixes: Mapping[str, str], *, writes_sgm: bool, projections: Collection[str] = ()
) -> TargetsOf:
    """Return the layers of models with a UNet and CLIP encoders, from their configs.

    `text_prefixes` are kohya's, by part; `projections` are the encoders with a projection behind them. Text layers have
    names without "text_model", too, as diffusers' exporter writes them under transformers 5.6 and later.
    """

    def targets(configs: Configs) -> AdapterTargets:
        unet = _unet_targets(configs, writes_sgm=writes_sgm)
        return AdapterTargets.of((*unet, *_text_targets(configs, text_prefixes, projections)))

    return targets


def _unet_targets(configs: Configs, *, writes_sgm: bool) -> Iterator[AdapterTarget]:
    shapes = unet_shapes(configs["unet"])
    for layer in unet_layers(configs["unet"]):
        yield AdapterTarget(
            "unet",
            layer.path,
            shapes[layer.path],
            {"diffusers": layer.path, "original": layer.original},
            _UNET_PREFIX,
            "original" if writes_sgm else "diffusers",
        )


def _text_targets(
    configs: Configs, prefixes: Mapping[str, str], projections: Collection[str]
) -> Iterator[AdapterTarget]:
    for part, prefix in ((p, prefix) for p, prefix in prefixes.items() if p in configs):
        for path, shape in text_shapes(configs[part], has_projection=part in projections).items():
            bare = path.removeprefix(TEXT_PREFIX)
            yield AdapterTarget(part, path, shape, {"text": path, "bare text": bare}, f"{prefix}_", "text")


def kohya_naming(model: str, configs: Configs) -> Callable[[str, str], str]:
    """Return a function from part and diffusers path to the layer's name in kohya files of this model."""
    names = {(t.part, t.path): t.kohya_name for t in published(model).adapter_targets(configs).all}
    return lambda part, path: names[part, file_path(part, path)]


def peft_name(part: str, path: str) -> str:
    """Return a layer's name in the PEFT form: `text_encoder.text_model.encoder.layers.0.mlp.fc1`."""
    return f"{part}.{file_path(part, path)}"


def file_path(part: str, path: str) -> str:
    """Return a layer's path in files: CLIP's text layers with "text_model.", whatever transformers calls them."""
    is_bare = part.startswith("text_encoder") and path.startswith(_CLIP_MODULES)
    return f"{TEXT_PREFIX}{path}" if is_bare else path
