"""What the layers of each model are called in LoRA files, and reading and writing the two forms by those names.

kohya form: a prefix per part and the path with underscores; the UNet's path is diffusers' for SD 1 and SD 2 and the
original ("SGM") one for SDXL, as kohya's trainers write them. Text layers carry "text_model". Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from modules.formats.single_file.clip_layout import PREFIX as TEXT_PREFIX
from modules.formats.single_file.clip_layout import text_layers
from modules.formats.single_file.models import Configs
from modules.formats.single_file.unet_layout import unet_layers

UNET_PREFIX = "lora_unet"


def text_prefixes(model: str) -> Mapping[str, str]:
    """Return the kohya prefix of each of a model's text encoders: SDXL numbers them."""
    if model.startswith("sdxl"):
        return {"text_encoder": "lora_te1", "text_encoder_2": "lora_te2"}
    return {"text_encoder": "lora_te"}


def writes_sgm(model: str) -> bool:
    """Whether kohya files of this model have the original layout's names for the UNet."""
    return model.startswith("sdxl")


def kohya_names(model: str, configs: Configs, *, sgm: bool) -> dict[str, tuple[str, str]]:
    """Return the kohya names of all layers a LoRA can have, `{name: (part, path)}`; paths are diffusers'."""
    names = {
        f"{UNET_PREFIX}_{(layer.original if sgm else layer.path).replace('.', '_')}": ("unet", layer.path)
        for layer in unet_layers(configs["unet"])
        if layer.sort != "norm"
    }
    for part, prefix in text_prefixes(model).items():
        if part in configs:
            names |= {f"{prefix}_{path.replace('.', '_')}": (part, path) for path in text_layers(configs[part])}
    return names


def readable_kohya_names(model: str, configs: Configs) -> dict[str, tuple[str, str]]:
    """Return every kohya name that is understood: both namings of the UNet, and text layers without "text_model", as
    diffusers' exporter writes them under transformers 5.6 and later.
    """
    names = kohya_names(model, configs, sgm=True) | kohya_names(model, configs, sgm=False)
    for part, prefix in text_prefixes(model).items():
        if part in configs:
            paths = {p: p.removeprefix(TEXT_PREFIX).replace(".", "_") for p in text_layers(configs[part])}
            names |= {f"{prefix}_{name}": (part, path) for path, name in paths.items()}
    return names


def kohya_naming(model: str, configs: Configs) -> Callable[[str, str], str]:
    """Return the function that names a layer, by part and diffusers path, as kohya files of this model do."""
    names = {place: name for name, place in kohya_names(model, configs, sgm=writes_sgm(model)).items()}
    return lambda part, path: names[part, file_path(part, path)]


def peft_name(part: str, path: str) -> str:
    """Return a layer's name in the PEFT form: `text_encoder.text_model.encoder.layers.0.mlp.fc1`."""
    return f"{part}.{file_path(part, path)}"


def file_path(part: str, path: str) -> str:
    """Return a layer's path as files have it: text layers with "text_model.", whatever transformers calls it."""
    if part.startswith("text_encoder") and not path.startswith(TEXT_PREFIX):
        return f"{TEXT_PREFIX}{path}"
    return path
