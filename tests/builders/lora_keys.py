"""The tensors of adapter files by their writers' own rules: names and shapes of every kind, without weights.

The layers are those of diffusers' and transformers' classes at full size on the meta device. Nothing here is shared
with the code that is tested.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache

import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from modules.system.paths import PROGRAM_ROOT

Shape = tuple[int, ...]
Keys = dict[str, Shape]
Layer = tuple[str, str, torch.nn.Module]  # part, path, module
Which = Callable[[str, str], bool]

CONFIGS = {"sd1": "sd/configs/sd1", "sd2_v": "sd/configs/sd2_v", "sdxl": "sdxl/configs/sdxl"}
RANK = 4


def meta_parts(model: str) -> dict[str, torch.nn.Module]:
    """Return the UNet and the text encoders of a published model, without memory."""
    folder = PROGRAM_ROOT / "modules/families" / CONFIGS[model]
    texts = {"text_encoder": CLIPTextModel, "text_encoder_2": CLIPTextModelWithProjection}
    configs = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json")}
    with torch.device("meta"):
        parts: dict[str, torch.nn.Module] = {"unet": UNet2DConditionModel.from_config(configs["unet"])}
        parts |= {n: kind(CLIPTextConfig(**configs[n])) for n, kind in texts.items() if n in configs}
    return parts


@cache
def _layers(model: str) -> tuple[Layer, ...]:
    """Return the layers of a model; paths in text encoders as transformers before 5.6 named them."""
    found = []
    for part, module in meta_parts(model).items():
        for path, layer in module.named_modules():
            is_layer = isinstance(layer, torch.nn.Linear | torch.nn.Conv2d)
            if is_layer or (part == "unet" and isinstance(layer, torch.nn.GroupNorm | torch.nn.LayerNorm)):
                text = part != "unet" and path != "text_projection" and not path.startswith("text_model.")
                found.append((part, f"text_model.{path}" if text else path, layer))
    return tuple(found)


def layers(model: str, which: Which | None = None, *, norms: bool = False) -> Iterator[Layer]:
    """Yield the linear and convolutional layers, or the UNet's norms; without a `which`, not the text projection."""
    for part, path, module in _layers(model):
        is_norm = isinstance(module, torch.nn.GroupNorm | torch.nn.LayerNorm)
        if is_norm == norms and (which(part, path) if which else path != "text_projection"):
            yield part, path, module


def everything(part: str, path: str) -> bool:
    """Every layer, with the text projection: OneTrainer's default."""
    return True


def attention(part: str, path: str) -> bool:
    """The attention: what diffusers' training scripts train."""
    return bool(re.search(r"\.to_([qkv]|out\.0)$|\.self_attn\.", path))


def transformers(part: str, path: str) -> bool:
    """The transformers of the UNet and the text encoders: what sd-scripts trains by default."""
    return ".attentions." in path or path.startswith("text_model.")


def unet(part: str, path: str) -> bool:
    """The UNet."""
    return part == "unet"


def matrices(module: torch.nn.Module) -> tuple[Shape, Shape]:
    """Return the shapes of a layer's down and up matrices."""
    if isinstance(module, torch.nn.Conv2d):
        return (RANK, module.in_channels, *module.kernel_size), (module.out_channels, RANK, 1, 1)
    assert isinstance(module, torch.nn.Linear)
    return (RANK, module.in_features), (module.out_features, RANK)


def sgm(path: str) -> str:
    """Return the name of a UNet's layer in Stability's generative-models, with two residual blocks to a level."""
    fixed = {"time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2"}
    fixed |= {"add_embedding.linear_1": "label_emb.0.0", "add_embedding.linear_2": "label_emb.0.2"}
    fixed |= {"conv_in": "input_blocks.0.0", "conv_norm_out": "out.0", "conv_out": "out.2"}
    if path in fixed:
        return fixed[path]
    block, _, rest = path.partition("_block")
    rest = rest.removeprefix("s.") if block != "mid" else rest.removeprefix(".")
    level = 0
    if block != "mid":
        number, _, rest = rest.partition(".")
        level = int(number)
    sort, number, inner = rest.split(".", 2)
    member = {"resnets": 0, "attentions": 1, "downsamplers": 0, "upsamplers": 1}[sort]
    if block == "mid":
        start = f"middle_block.{2 * int(number) if sort == 'resnets' else 1}"
    elif block == "down":
        start = f"input_blocks.{3 * level + (3 if sort == 'downsamplers' else 1 + int(number))}.{member}"
    else:
        start = f"output_blocks.{3 * level + (2 if sort == 'upsamplers' else int(number))}.{member}"
    if sort == "resnets":
        names = {"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1"}
        names |= {"norm2": "out_layers.0", "conv2": "out_layers.3", "conv_shortcut": "skip_connection"}
        inner = names[inner]
    return f"{start}.{'op' if sort == 'downsamplers' else inner}"


def upsampler_behind_attention(name: str, attentive: set[str]) -> str:
    """Return the SGM name of an upsampler: behind an attention it is the third member of its block, not the second."""
    match = re.fullmatch(r"(output_blocks\.\d+)\.1\.conv", name)
    return f"{match[1]}.2.conv" if match and match[1] in attentive else name


@cache
def sgm_names(model: str) -> Mapping[str, str]:
    """Return the SGM names of a model's UNet by diffusers' paths."""
    names = {path: sgm(path) for part, path, _ in _layers(model) if part == "unet"}
    attentive = {".".join(n.split(".")[:2]) for n in names.values() if ".1.transformer_blocks." in n}
    return {path: upsampler_behind_attention(name, attentive) for path, name in names.items()}


def kohya_name(model: str, part: str, path: str, *, is_sgm: bool, text: str = "") -> str:
    """Return a layer's name in kohya's form; `text` overrides the first encoder's prefix."""
    second = model == "sdxl"
    prefixes = {"unet": "lora_unet", "text_encoder": text or ("lora_te1" if second else "lora_te")}
    name = sgm_names(model)[path] if part == "unet" and is_sgm else path
    return f"{prefixes.get(part, 'lora_te2')}_{name.replace('.', '_')}"


def kohya(
    model: str, which: Which | None = None, *, is_sgm: bool | None = None, text: str = "", norms: bool = False
) -> Keys:
    """A LoRA as sd-scripts writes it: SGM names for SDXL, diffusers names otherwise; `norms` are LyCORIS' `w_norm`."""
    by_sgm = model == "sdxl" if is_sgm is None else is_sgm
    keys: Keys = {}
    for part, path, module in layers(model, which):
        name = kohya_name(model, part, path, is_sgm=by_sgm, text=text)
        down, up = matrices(module)
        keys |= {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up, f"{name}.alpha": ()}
    if norms:
        for part, path, module in layers(model, which, norms=True):
            name = kohya_name(model, part, path, is_sgm=by_sgm)
            keys |= {f"{name}.{p[0]}_norm": tuple(w.shape) for p, w in module.named_parameters()}
    return keys


def peft(model: str, which: Which | None = None, *, bare: bool = False, start: str = "") -> Keys:
    """A LoRA in PEFT's form. `bare`: CLIPTextModel without "text_model.", as transformers 5.6 and later name it.

    `start` replaces the part: "base_model.model." is what PEFT itself writes.
    """
    keys: Keys = {}
    for part, path, module in layers(model, which):
        named = path.removeprefix("text_model.") if bare and part == "text_encoder" else path
        name = f"{start or f'{part}.'}{named}"
        keys |= dict(zip((f"{name}.lora_A.weight", f"{name}.lora_B.weight"), matrices(module), strict=True))
    return keys


def processors(model: str) -> Keys:
    """A LoRA as diffusers wrote it before PEFT: attention processors, and the attention of the text encoder."""
    keys: Keys = {}
    for part, path, module in layers(model, attention):
        down, up = matrices(module)
        if part == "unet":
            place, _, target = path.removesuffix(".0").rpartition(".")
            name, ends = f"unet.{place}.processor.{target}_lora", ("down", "up")
        else:
            name, ends = f"{part}.{path}.lora_linear_layer", ("down", "up")
        keys |= {f"{name}.{ends[0]}.weight": down, f"{name}.{ends[1]}.weight": up}
    return keys


def comfy(model: str, which: Which | None = None) -> Keys:
    """A LoRA as ComfyUI saves it."""
    clips = {"text_encoder": "clip_l", "text_encoder_2": "clip_g"}
    keys: Keys = {}
    for part, path, module in layers(model, which):
        is_unet = part == "unet"
        name = (
            f"diffusion_model.{sgm_names(model)[path]}"
            if is_unet
            else f"text_encoders.{clips[part]}.transformer.{path}"
        )
        down, up = matrices(module)
        keys |= {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up, f"{name}.alpha": ()}
    return keys


def renamed(keys: Keys, pattern: str, name: str) -> Keys:
    """Return the tensors with their names changed."""
    return {re.sub(pattern, name, key): shape for key, shape in keys.items()}


def with_magnitudes(keys: Keys) -> Keys:
    """Return a LoRA in PEFT's form with DoRA's magnitudes, as diffusers and transformers name them."""
    found = dict(keys)
    for name, shape in keys.items():
        if name.endswith(".lora_B.weight"):
            end = ".weight" if name.startswith("text_encoder") else ""
            out = (1, shape[0], 1, 1) if len(shape) == 4 else (shape[0],)
            found[f"{name.removesuffix('.lora_B.weight')}.lora_magnitude_vector{end}"] = out
    return found


def with_each(keys: Keys, factor: str, shape: Shape) -> Keys:
    """Return a kohya LoRA with one more factor for each layer."""
    downs = [key for key in keys if key.endswith(".lora_down.weight")]
    return keys | {f"{key.removesuffix('.lora_down.weight')}.{factor}": shape for key in downs}
