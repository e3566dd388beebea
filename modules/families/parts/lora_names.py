"""The names of the layers of a UNet and of CLIP text encoders in LoRA files.

kohya form: a prefix per part and the path with underscores; the UNet's path is diffusers' or the original ("SGM") one,
as kohya's trainers write it for the model. Names of text layers contain "text_model". Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from modules.families.parts.single_file.clip_layout import PREFIX as TEXT_PREFIX
from modules.families.parts.single_file.clip_layout import text_layers
from modules.families.parts.single_file.unet_layout import unet_layers
from modules.families.published import Configs, LoraNames, NamedLayer
from modules.families.registry import published

UNET_PREFIX = "lora_unet"
Places = dict[str, tuple[str, str]]


def unet_clip_lora(text_prefixes: Mapping[str, str], *, writes_sgm: bool) -> LoraNames:
    """Return the names of a model with a UNet and CLIP encoders; `text_prefixes` are kohya's, by part.

    Both namings of the UNet can be read. Text layers can also be read without "text_model", as diffusers' exporter
    writes them under transformers 5.6 and later.
    """

    def known(configs: Configs) -> Places:
        return layer_names(configs, text_prefixes, sgm=True) | layer_names(configs, text_prefixes, sgm=False)

    def readable(configs: Configs) -> Places:
        names = known(configs)
        for part, prefix in text_prefixes.items():
            if part in configs:
                paths = {p: p.removeprefix(TEXT_PREFIX).replace(".", "_") for p in text_layers(configs[part])}
                names |= {f"{prefix}_{name}": (part, path) for path, name in paths.items()}
        return names

    return LoraNames(
        written=lambda configs: layer_names(configs, text_prefixes, sgm=writes_sgm),
        known=known,
        readable=readable,
        layers=lambda configs: adapter_layers(configs, text_prefixes),
    )


def layer_names(configs: Configs, text_prefixes: Mapping[str, str], *, sgm: bool) -> Places:
    """Return the kohya names of all layers a LoRA can have, `{name: (part, path)}`; paths are diffusers'."""
    names = {
        f"{UNET_PREFIX}_{(layer.original if sgm else layer.path).replace('.', '_')}": ("unet", layer.path)
        for layer in unet_layers(configs["unet"])
        if layer.sort != "norm"
    }
    for part, prefix in text_prefixes.items():
        if part in configs:
            names |= {f"{prefix}_{path.replace('.', '_')}": (part, path) for path in text_layers(configs[part])}
    return names


def adapter_layers(configs: Configs, text_prefixes: Mapping[str, str]) -> tuple[NamedLayer, ...]:
    """Return every layer that an adapter of any program can change, norms and text projections too."""
    unet = (
        NamedLayer("unet", layer.path, UNET_PREFIX, layer.original, layer.sort == "norm")
        for layer in unet_layers(configs["unet"])
    )
    parts = ((part, prefix) for part, prefix in text_prefixes.items() if part in configs)
    return (*unet, *(layer for part, prefix in parts for layer in _text(part, prefix, configs[part])))


def _text(part: str, prefix: str, config: Mapping[str, Any]) -> Iterator[NamedLayer]:
    yield from (NamedLayer(part, path, prefix) for path in text_layers(config))
    blocks = [f"{TEXT_PREFIX}encoder.layers.{i}.layer_norm" for i in range(int(config["num_hidden_layers"]))]
    norms = [*(f"{block}{n}" for block in blocks for n in (1, 2)), f"{TEXT_PREFIX}final_layer_norm"]
    yield from (NamedLayer(part, path, prefix, is_norm=True) for path in norms)
    if any("WithProjection" in name for name in config.get("architectures") or ()):
        yield NamedLayer(part, "text_projection", prefix)


def kohya_naming(model: str, configs: Configs) -> Callable[[str, str], str]:
    """Return a function from part and diffusers path to the layer's name in kohya files of this model."""
    names = {place: name for name, place in published(model).lora.written(configs).items()}
    return lambda part, path: names[part, file_path(part, path)]


def peft_name(part: str, path: str) -> str:
    """Return a layer's name in the PEFT form: `text_encoder.text_model.encoder.layers.0.mlp.fc1`."""
    return f"{part}.{file_path(part, path)}"


def file_path(part: str, path: str) -> str:
    """Return a layer's path in files: text layers with "text_model.", whatever transformers calls them."""
    if part.startswith("text_encoder") and not path.startswith(TEXT_PREFIX):
        return f"{TEXT_PREFIX}{path}"
    return path
