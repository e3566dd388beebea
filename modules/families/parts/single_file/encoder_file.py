"""A file with a text encoder alone: its tensors under the names that all versions of transformers share.

Files have them as transformers writes them, with the prefix of a larger model or without one, or as llama.cpp names
them (GGUF). Tensors of the larger model, such as the head of a language model, are not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from modules.families.spec import PartSpec
from modules.system.errors import DarkroomError


@dataclass(frozen=True, slots=True)
class EncoderLayout:
    """How files name the tensors of a kind of text encoder.

    `mark` begins a name that every such file has, after any prefix; `block` is the pattern of the names in a block.
    `gguf_mark` and `gguf` are the same in llama.cpp's names, with our name of each: blocks as "{}".
    """

    label: str
    mark: str
    block: str
    gguf_mark: str = ""
    gguf: Mapping[str, str] | None = None


_DECODER_GGUF = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "blk.{}.attn_norm": "layers.{}.input_layernorm",
    "blk.{}.ffn_norm": "layers.{}.post_attention_layernorm",
    "blk.{}.attn_output": "layers.{}.self_attn.o_proj",
    **{f"blk.{{}}.attn_{x}": f"layers.{{}}.self_attn.{x}_proj" for x in "qkv"},
    **{f"blk.{{}}.attn_{x}_norm": f"layers.{{}}.self_attn.{x}_norm" for x in "qk"},
    **{f"blk.{{}}.ffn_{x}": f"layers.{{}}.mlp.{x}_proj" for x in ("gate", "up", "down")},
}
_T5_GGUF = {
    "token_embd": "shared",
    "enc.output_norm": "encoder.final_layer_norm",
    "enc.blk.{}.attn_norm": "encoder.block.{}.layer.0.layer_norm",
    "enc.blk.{}.ffn_norm": "encoder.block.{}.layer.1.layer_norm",
    "enc.blk.{}.attn_rel_b": "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias",
    **{f"enc.blk.{{}}.attn_{x}": f"encoder.block.{{}}.layer.0.SelfAttention.{x}" for x in "qkvo"},
    "enc.blk.{}.ffn_gate": "encoder.block.{}.layer.1.DenseReluDense.wi_0",
    "enc.blk.{}.ffn_up": "encoder.block.{}.layer.1.DenseReluDense.wi_1",
    "enc.blk.{}.ffn_down": "encoder.block.{}.layer.1.DenseReluDense.wo",
}
LAYOUTS = (
    EncoderLayout(
        "T5 text encoder",
        "encoder.block.0.layer.0.SelfAttention.",
        r"encoder\.block\.\d+\.",
        "enc.blk.0.",
        _T5_GGUF,
    ),
    EncoderLayout("CLIP text encoder", "encoder.layers.0.self_attn.", r"encoder\.layers\.\d+\."),
    EncoderLayout("language model", "layers.0.self_attn.", r"layers\.\d+\.", "blk.0.", _DECODER_GGUF),
)
"""The kinds of text encoders. The first whose mark a file has counts: the marks of the others are in its names."""

_NOT_TEXT = ("vision_model.", "visual.", "vision_tower.")
_TIED = {"encoder.embed_tokens.weight": "shared.weight"}  # T5's embeddings, which are one tensor under two names
_OPTIONAL_PREFIX = "text_model."  # of CLIP: versions of transformers differ
_LANGUAGE_PREFIX = "language_model."  # of a module that has a vision encoder, too
_VISION = "visual."


def shared_name(name: str) -> str:
    """Return the name of a tensor of a module or a file, without a prefix, that all versions have in common."""
    bare = name.removeprefix(_OPTIONAL_PREFIX).removeprefix(_LANGUAGE_PREFIX)
    return _TIED.get(bare, bare)


def layout_of(names: Iterable[str]) -> EncoderLayout | None:
    """Return the layout of the text encoder in a file with tensors of these names; None where there is none."""
    return _detect_layout(list(names))[0]


def encoder_tensors(names: Iterable[str]) -> dict[str, str]:
    """Return the tensors of the text encoder in a file: `{shared name: name in the file}`; empty without an encoder."""
    names = list(names)
    layout, prefix = _detect_layout(names)
    if layout is None:
        return {}
    if layout.gguf is not None and prefix is None:
        return {ours: name for name in names if (ours := _name_from_gguf(layout.gguf, name))}
    start = prefix or ""
    return {shared_name(n.removeprefix(start)): n for n in names if n.startswith(start) and not n.startswith(_NOT_TEXT)}


def require_encoder(
    expected: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]], *, file: str, part: PartSpec
) -> dict[str, str]:
    """Return the name in a file of each tensor of a text encoder, by the module's own name.

    `expected` are the shapes of the module's tensors, `stored` those in the file. A tensor that files may lack
    (`ModelClass.identity_if_missing`) is left out if this one does. Raises DarkroomError if the file contains no
    text encoder, or one of another kind or size.
    """
    label = part.label
    names, layout = encoder_tensors(stored), layout_of(stored)
    if layout is None:
        raise DarkroomError(f"{file} contains no text encoder.", advice=f"Choose a file of {label}.")
    wanted = {name: shared_name(name) for name in expected}
    wanted = {n: ours for n, ours in wanted.items() if ours in names or n not in part.model.identity_if_missing}
    advice = f"Choose a file of {label} in the size that the model was trained with."
    if part.model.language_prefix:
        names |= {n[n.index(_VISION) :]: n for n in stored if n.startswith((_VISION, f"model.{_VISION}"))}
        if not any(name.startswith(_VISION) for name in names):
            raise DarkroomError(
                f"The {layout.label} in {file} has no vision encoder, with which an editing model reads its reference "
                "images.",
                advice=f"Choose a file of {label} with its vision encoder (visual), or leave the field empty.",
            )
    if missing := sorted(ours for ours in wanted.values() if ours not in names):
        raise DarkroomError(
            f"The {layout.label} in {file} is not the model's {label}: {len(missing)} of its {len(wanted)} weights are "
            f"missing; the first is {missing[0]}.",
            advice=advice,
        )
    for name, ours in wanted.items():
        if stored[names[ours]] != expected[name]:
            raise DarkroomError(
                f"The {layout.label} in {file} is not the model's {label}: {ours} is {stored[names[ours]]} where "
                f"{expected[name]} is expected.",
                advice=advice,
            )
    further = sorted(n for n in names.keys() - set(wanted.values()) if re.match(layout.block, n))
    if further := [n for n in further if not n.endswith((".rotary_emb.inv_freq", "position_ids"))]:
        raise DarkroomError(
            f"The {layout.label} in {file} is not the model's {label}: it has {len(further)} further weights, such as "
            f"{further[0]}.",
            advice=advice,
        )
    return {name: names[ours] for name, ours in wanted.items()}


def _detect_layout(names: list[str]) -> tuple[EncoderLayout | None, str | None]:
    """Return the layout of a file and the prefix of its names, which is None in llama.cpp's names."""
    for layout in LAYOUTS:
        if layout.gguf_mark and any(name.startswith(layout.gguf_mark) for name in names):
            return layout, None
        for name in names:
            before, mark, _ = name.partition(layout.mark)
            is_prefix = not before or before.endswith(".")
            if mark and is_prefix and not before.startswith(_NOT_TEXT) and "decoder." not in before:
                return layout, before.removesuffix(_OPTIONAL_PREFIX)
    return None, None


def _name_from_gguf(names: Mapping[str, str], name: str) -> str:
    """Return our name of a tensor in llama.cpp's names; empty for an unknown one."""
    layer, _, kind = name.rpartition(".")
    if match := re.fullmatch(r"((?:enc\.)?blk\.)(\d{1,5})(\..+)", layer):
        ours = names.get(f"{match[1]}{{}}{match[3]}", "")
        return f"{ours.format(match[2])}.{kind}" if ours else ""
    return f"{names[layer]}.{kind}" if layer in names else ""
