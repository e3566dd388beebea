"""The layers of T5 encoders that adapter files can change, and the tensors of such encoders in files.

Files have transformers' names; only the vocabulary is there once, for both modules that share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.linear_layers import LayersOf, original_targets
from modules.families.parts.single_file.slots import Slot, limit_layers
from modules.families.published import Configs, TargetsOf
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets

_SHARED = "encoder.embed_tokens.weight"  # `shared.weight`


def is_unused(name: str) -> bool:
    """Return whether a file's tensor is the second name of the vocabulary."""
    return name.endswith(_SHARED)


def t5_key(key: str) -> str:
    """Return the key of an encoder's tensor in files, empty for the second name of the vocabulary."""
    return "" if key == _SHARED else key


def t5_targets(part: str, config: Mapping[str, Any], prefix: str) -> Iterator[AdapterTarget]:
    """Yield the layers of a T5 encoder; `part` is its name in the pipeline, `prefix` kohya's for it: `lora_te3_`.

    Raises ValueError if the config describes more layers than any model has.
    """
    for path, shape in limit_layers(t5_shapes(config)):
        yield AdapterTarget(part, path, shape, {"text": path}, prefix, "text")


def targets_with_t5(layers_of: LayersOf) -> TargetsOf:
    """Return the `adapter_targets` of a model with a transformer and a T5, its only text encoder."""

    def targets(configs: Configs) -> AdapterTargets:
        layers, matrices = original_targets(layers_of(configs["transformer"]))
        return AdapterTargets.of((*layers, *t5_targets("text_encoder", configs["text_encoder"], "lora_te1_")), matrices)

    return targets


def t5_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield each linear layer of a T5 encoder with the shape of its weight (out, in)."""
    width, inner = int(config["d_model"]), int(config["num_heads"]) * int(config["d_kv"])
    hidden = int(config["d_ff"])
    is_gated = str(config["feed_forward_proj"]).startswith("gated-")
    for index in range(int(config["num_layers"])):
        block = f"encoder.block.{index}.layer"
        for name in "qkv":
            yield f"{block}.0.SelfAttention.{name}", (inner, width)
        yield f"{block}.0.SelfAttention.o", (width, inner)
        for name in ("wi_0", "wi_1") if is_gated else ("wi",):
            yield f"{block}.1.DenseReluDense.{name}", (hidden, width)
        yield f"{block}.1.DenseReluDense.wo", (width, hidden)


def t5_slots(config: Mapping[str, Any]) -> Iterator[Slot]:
    """Yield the slots of a T5 encoder in single files, which have transformers' own names."""
    names = ["shared.weight", "encoder.final_layer_norm.weight"]
    names += [f"{path}.weight" for path, _ in limit_layers(t5_shapes(config))]
    names.append("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
    names += [
        f"encoder.block.{n}.layer.{k}.layer_norm.weight" for n in range(int(config["num_layers"])) for k in (0, 1)
    ]
    yield from (Slot(name, name) for name in names)
