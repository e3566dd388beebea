"""The layers of a UNet and of CLIP text encoders that adapter files can change, by every name that files have for them.

kohya form: a prefix per part and the path with underscores; the UNet's path is diffusers' or the original ("SGM") one,
as kohya's trainers write it for the model. Names of text layers contain "text_model".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from modules.families.lora_naming import LoraNaming
from modules.families.parts.single_file.sizes import configs_to_bring
from modules.families.parts.single_file.slots import limit_layers
from modules.families.parts.unet_clip_file.clip import TEXT_PREFIX
from modules.families.parts.unet_clip_file.unet import unet_layers
from modules.families.published import Configs, PublishedModel, TargetsOf
from modules.families.registry import FAMILIES, files_of, published_model
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets, name_of

Shape = tuple[int, ...]
Config = Mapping[str, Any]
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
        yield from clip_targets(part, configs[part], f"{prefix}_", has_projection=part in projections)


def clip_targets(part: str, config: Config, prefix: str, *, has_projection: bool = False) -> Iterator[AdapterTarget]:
    """Yield the layers of a CLIP text encoder; `part` is its name in the pipeline, `prefix` kohya's for it."""
    for path, shape in text_shapes(config, has_projection=has_projection).items():
        bare = path.removeprefix(TEXT_PREFIX)
        yield AdapterTarget(part, path, shape, {"text": path, "bare text": bare}, prefix, "text")


def with_clip_g_alone(targets: AdapterTargets) -> AdapterTargets:
    """Return the layers of a model whose only text encoder is OpenCLIP's bigG: ComfyUI's names of it, clip_g, are
    the names of the second one in other models.
    """
    part_of_clip_g, _ = name_of("text_encoders.clip_g.")
    of_text = {path: target for (part, path), target in targets.by_name.items() if part == "text_encoder"}
    of_clip_g = {(part_of_clip_g, path): target for path, target in of_text.items()}
    return replace(targets, by_name={**targets.by_name, **of_clip_g})


def kohya_naming(model: str, configs: Configs) -> Callable[[str, str], str]:
    """Return a function from part and diffusers path to the layer's name in kohya files of this model."""
    return _kohya_naming(published_model(model).adapter_targets(configs))


def _kohya_naming(targets: AdapterTargets) -> Callable[[str, str], str]:
    names = {(t.part, t.path): t.kohya_name for t in (*targets.all, *targets.matrices)}
    return lambda part, path: names[part, file_path(part, path)]


def comfy_naming(model: str, configs: Configs) -> Callable[[str, str], str]:
    """Return a function from part and diffusers path to the layer's name in ComfyUI's files of this model.

    The denoiser's layers have the names of the original layout, where the model has one, or those that ComfyUI has in
    their place. A layer that is a piece of a matrix there has SimpleTuner's name, which ComfyUI reads as these rows of
    the matrix.
    """
    record = published_model(model)
    return _comfy_naming(record, record.adapter_targets(configs))


def _comfy_naming(record: PublishedModel, targets: AdapterTargets) -> Callable[[str, str], str]:
    denoiser = FAMILIES[record.family].denoiser.name
    pieces = {(piece.part, piece.path) for matrix in targets.matrices for piece in matrix.pieces}

    def name_of(target: AdapterTarget) -> str:
        if (target.part, target.path) in pieces:
            return target.kohya_name
        if target.part == denoiser or "with part" in target.paths:
            original = target.paths.get("original")
            return f"diffusion_model.{target.paths.get('comfyui', original) if original else target.kohya_path}"
        encoder = record.comfy_encoders.get(target.part, target.part)
        return f"text_encoders.{encoder}.transformer.{target.paths[target.kohya_layout]}"

    names = {(t.part, t.path): name_of(t) for t in (*targets.all, *targets.matrices)}
    return lambda part, path: names[part, file_path(part, path)]


def peft_name(part: str, path: str) -> str:
    """Return a layer's name in the PEFT form: `text_encoder.text_model.encoder.layers.0.mlp.fc1`."""
    return f"{part}.{file_path(part, path)}"


def file_path(part: str, path: str) -> str:
    """Return a layer's path in files: CLIP's text layers with "text_model.", whatever transformers calls them."""
    is_bare = part.startswith("text_encoder") and path.startswith(_CLIP_MODULES)
    return f"{TEXT_PREFIX}{path}" if is_bare else path


def naming_of(
    model: str, parts: Mapping[str, Any], *, prediction: str, version: str = "", by_inputs: str = ""
) -> LoraNaming:
    """Return the names of a loaded model's layers; `model` is its published model.

    `version` overrides the published model's kohya version; `by_inputs` is a variant that its weights do not show.
    Kohya's names depend on the UNet's config, since the original layout numbers its blocks consecutively.
    """
    record = published_model(model)
    configs = {name: _config(module) for name, module in parts.items()}
    denoiser = FAMILIES[record.family].denoiser
    variant = files_of(record.family).variants.get(denoiser.model.channels_in(configs[denoiser.name]), by_inputs)
    targets = record.adapter_targets(configs)  # SDXL's take 10 ms
    return LoraNaming(
        _kohya_naming(targets),
        peft_name,
        _comfy_naming(record, targets),
        version or record.kohya_name,
        record.architecture_of(variant),
        model,
        targets,
        prediction,
        own_configs=configs_to_bring(model, configs),
        variant=variant,
        is_v2=record.is_v2,
    )


def _config(module: Any) -> dict[str, Any]:
    """Return a part's config: diffusers' is a mapping, transformers' an object."""
    config = module.config
    return config.to_dict() if hasattr(config, "to_dict") else dict(config)


# The shapes of the weights, from the configs: an adapter file must fit them. They are (out, in), (out, in, height,
# width) for convolutions and (width,) for norms.


def text_shapes(config: Config, *, has_projection: bool) -> dict[str, Shape]:
    """Return the shape of the weight of every layer of a CLIP text encoder that an adapter can change, by path.

    Raises ValueError if the config describes more layers than any model has.
    """
    width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    shapes: dict[str, Shape] = {}
    for index in limit_layers(range(int(config["num_hidden_layers"]))):
        layer = f"{TEXT_PREFIX}encoder.layers.{index}"
        shapes |= {f"{layer}.self_attn.{name}": (width, width) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
        shapes |= {f"{layer}.mlp.fc1": (inner, width), f"{layer}.mlp.fc2": (width, inner)}
        shapes |= {f"{layer}.layer_norm{n}": (width,) for n in (1, 2)}
    shapes[f"{TEXT_PREFIX}final_layer_norm"] = (width,)
    if has_projection:
        shapes["text_projection"] = (int(config["projection_dim"]), width)
    return shapes


def unet_shapes(config: Config) -> dict[str, Shape]:
    """Return the shape of the weight of every layer of a `UNet2DConditionModel` of this config, by path."""
    blocks = dict(limit_layers(_blocks(config)))
    return {layer.path: _shape(layer.path, blocks, config) for layer in unet_layers(config)}


def _blocks(config: Config) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the channels into and out of every residual block, attention and resampler."""
    channels = [int(n) for n in config["block_out_channels"]]
    levels = len(channels)
    before = channels[0]
    for level, width in enumerate(channels):
        for index in range(_per_level(config, level)):
            yield f"down_blocks.{level}.resnets.{index}", (before, width)
            yield f"down_blocks.{level}.attentions.{index}", (width, width)
            before = width
        yield f"down_blocks.{level}.downsamplers.0", (width, width)
    for name in ("resnets.0", "attentions.0", "resnets.1"):
        yield f"mid_block.{name}", (channels[-1], channels[-1])
    mirrored = channels[::-1]
    before = mirrored[0]
    for level, width in enumerate(mirrored):
        last = _per_level(config, levels - 1 - level)
        skipped = mirrored[min(level + 1, levels - 1)]
        for index in range(last + 1):
            yield f"up_blocks.{level}.resnets.{index}", (before + (skipped if index == last else width), width)
            yield f"up_blocks.{level}.attentions.{index}", (width, width)
            before = width
        yield f"up_blocks.{level}.upsamplers.0", (width, width)


def _shape(path: str, blocks: Mapping[str, tuple[int, int]], config: Config) -> Shape:
    first = int(config["block_out_channels"][0])
    time = int(config.get("time_embedding_dim") or 4 * first)
    ends: dict[str, Shape] = {
        "time_embedding.linear_1": (time, first),
        "time_embedding.linear_2": (time, time),
        "add_embedding.linear_1": (time, int(config.get("projection_class_embeddings_input_dim") or 0)),
        "add_embedding.linear_2": (time, time),
        "conv_in": (first, int(config["in_channels"]), 3, 3),
        "conv_norm_out": (first,),
        "conv_out": (int(config["out_channels"]), first, 3, 3),
    }
    if path in ends:
        return ends[path]
    block = next(b for b in (".".join(path.split(".")[:n]) for n in (4, 3)) if b in blocks)
    rest = path.removeprefix(f"{block}.")
    columns, rows = blocks[block]
    inside: dict[str, Shape] = {
        "norm1": (columns,),
        "conv1": (rows, columns, 3, 3),
        "time_emb_proj": (rows, time),
        "norm2": (rows,),
        "conv2": (rows, rows, 3, 3),
        "conv_shortcut": (rows, columns, 1, 1),
        "conv": (rows, rows, 3, 3),
    }
    if rest in inside:
        return inside[rest]
    return _attention(rest, rows, config)


def _attention(rest: str, width: int, config: Config) -> Shape:
    """Return the shape of a layer inside an attention of a width, by its name there."""
    if rest in ("proj_in", "proj_out"):
        return (width, width) if config.get("use_linear_projection") else (width, width, 1, 1)
    if rest.endswith(("attn2.to_k", "attn2.to_v")):
        return (width, int(config["cross_attention_dim"]))
    if rest.endswith("ff.net.0.proj"):
        return (8 * width, width)
    if rest.endswith("ff.net.2"):
        return (width, 4 * width)
    return (width,) if "norm" in rest else (width, width)


def _per_level(config: Config, level: int) -> int:
    value = config["layers_per_block"]
    return int(value[level]) if isinstance(value, list | tuple) else int(value)
