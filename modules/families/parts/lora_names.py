"""The layers of a UNet and of CLIP text encoders that adapter files can change, and their names in our files.

kohya form: a prefix per part and the path with underscores; the UNet's path is diffusers' or the original ("SGM") one,
as kohya's trainers write it for the model. Names of text layers contain "text_model". Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from modules.families.parts.lora_shapes import text_shapes, unet_shapes
from modules.families.parts.single_file.clip_layout import PREFIX as TEXT_PREFIX
from modules.families.parts.single_file.unet_layout import unet_layers
from modules.families.published import Configs, LoraNames, NamedLayer
from modules.families.registry import published
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets

UNET_PREFIX = "lora_unet"
_PROJECTION = "text_projection"
Places = dict[str, tuple[str, str]]


def unet_clip_lora(
    text_prefixes: Mapping[str, str], *, writes_sgm: bool, projections: Collection[str] = ()
) -> LoraNames:
    """Return the names of a model with a UNet and CLIP encoders; `text_prefixes` are kohya's, by part.

    `projections` are the encoders with a projection behind them. Every naming can be read; text layers also without
    "text_model", as diffusers' exporter writes them under transformers 5.6 and later.
    """

    def names(configs: Configs, *, sgm: bool, norms: bool) -> Places:
        found = {
            f"{UNET_PREFIX}_{_flat(layer.original if sgm else layer.path)}": ("unet", layer.path)
            for layer in unet_layers(configs["unet"])
            if norms or layer.sort != "norm"
        }
        for target in _text_targets(configs, text_prefixes, projections):
            if norms or len(target.weight) > 1:
                found[f"{text_prefixes[target.part]}_{_flat(target.path)}"] = (target.part, target.path)
        return found

    return LoraNames(
        written=lambda configs: names(configs, sgm=writes_sgm, norms=True),
        known=lambda configs: names(configs, sgm=True, norms=False) | names(configs, sgm=False, norms=False),
        targets=lambda configs: AdapterTargets.of(
            (*_unet_targets(configs), *_text_targets(configs, text_prefixes, projections))
        ),
        layers=lambda configs: _named_layers(configs, text_prefixes, projections),
    )


def _unet_targets(configs: Configs) -> Iterator[AdapterTarget]:
    shapes = unet_shapes(configs["unet"])
    for layer in unet_layers(configs["unet"]):
        yield AdapterTarget("unet", layer.path, (_flat(layer.path), _flat(layer.original)), shapes[layer.path])


def _text_targets(configs: Configs, parts: Collection[str], projections: Collection[str]) -> Iterator[AdapterTarget]:
    for part in (p for p in parts if p in configs):
        for path, shape in text_shapes(configs[part], has_projection=part in projections).items():
            yield AdapterTarget(part, path, (_flat(path), _flat(path.removeprefix(TEXT_PREFIX))), shape)


def _flat(path: str) -> str:
    return path.replace(".", "_")


def _named_layers(
    configs: Configs, text_prefixes: Mapping[str, str], projections: Collection[str]
) -> tuple[NamedLayer, ...]:
    unet = (
        NamedLayer("unet", layer.path, UNET_PREFIX, layer.original, layer.sort == "norm")
        for layer in unet_layers(configs["unet"])
    )
    text = (
        NamedLayer(target.part, target.path, text_prefixes[target.part], is_norm=len(target.weight) == 1)
        for target in _text_targets(configs, text_prefixes, projections)
    )
    return (*unet, *text)


def kohya_naming(model: str, configs: Configs) -> Callable[[str, str], str]:
    """Return a function from part and diffusers path to the layer's name in kohya files of this model."""
    names = {place: name for name, place in published(model).lora.written(configs).items()}
    return lambda part, path: names[part, file_path(part, path)]


def peft_name(part: str, path: str) -> str:
    """Return a layer's name in the PEFT form: `text_encoder.text_model.encoder.layers.0.mlp.fc1`."""
    return f"{part}.{file_path(part, path)}"


def file_path(part: str, path: str) -> str:
    """Return a layer's path in files: text layers with "text_model.", whatever transformers calls them."""
    is_inside = part.startswith("text_encoder") and path != _PROJECTION and not path.startswith(TEXT_PREFIX)
    return f"{TEXT_PREFIX}{path}" if is_inside else path
