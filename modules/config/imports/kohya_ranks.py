"""kohya's ranks of convolutions and of blocks, DoRA, rsLoRA, LoRA+ and dropouts, of sd-scripts and LyCORIS.

The blocks are numbered as in sd-scripts' `block_dims`: for SD 1.x and 2.x 12 down, 1 in the middle and 12 of the
way up, for SDXL 9, 3 and 9. Each is a resnet with what follows it, so three make one of diffusers' blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from modules.adapters.registry import ADAPTERS
from modules.config.imports.kohya_values import Args, flag_of, number_of, pop_first
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.system.problem import Problem

_PER_BLOCK = 3  # resnets, or resnets and what resamples, in one of diffusers' blocks
_LINEAR = "(attentions.{n}|resnets.{n}.(time_emb_proj|conv_shortcut))"
_ATTENTION = "attentions.{n}"  # without convolutions only these have an adapter
_CONV = "resnets.{n}.conv[12]"
# diffusers' blocks that have no attention, by the number of kohya's blocks.
_WITHOUT_ATTENTION = {25: ("down_blocks.3.", "up_blocks.0."), 21: ("down_blocks.0.", "up_blocks.2.")}


def adapter_options(given: Args, network: Args, result: Tree, notes: Notes, *, name: str, on_resnets: bool) -> None:
    """Convert an adapter's settings besides rank, alpha and dropout, which are popped from `given` and `network`.

    `on_resnets`: the adapter is also on the layers outside of the attention.
    """
    fields = ADAPTERS[name].settings.model_fields
    settings = {
        **_ranks(given, network, notes, on_resnets=on_resnets),
        **_switches(given, network),
        **_rates(given, network, notes),
    }
    for field, value in settings.items():
        if value is not None and field in fields:
            put(result, f"adapter.{field}", value)
        elif value:
            label = ADAPTERS[name].label
            notes.append(Problem(f"adapter.{field}", f"{field} = {value} has no effect on {label}.", "info"))


def _pop_either(given: Args, network: Args, name: str) -> object:
    """Pop a setting from both places and return its value; None if it is set in neither."""
    return pop_first({name: given.pop(name, None), "": network.pop(name, None)}, name, "")


def _ranks(given: Args, network: Args, notes: Notes, *, on_resnets: bool) -> dict[str, object]:
    conv_rank, conv_alpha = (number_of(_pop_either(given, network, key)) for key in ("conv_dim", "conv_alpha"))
    lines: list[str] = []
    for prefix, pattern in (("conv_block", _CONV), ("block", _LINEAR if on_resnets else _ATTENTION)):
        dims, alphas = (_numbers(_pop_either(given, network, f"{prefix}_{of}")) for of in ("dims", "alphas"))
        if dims and (on_resnets or pattern != _CONV):
            lines += _lines(dims, alphas, pattern, notes)
    return {
        "conv_rank": int(conv_rank) if conv_rank else None,
        "conv_alpha": conv_alpha or None,
        "layer_ranks": "\n".join(lines) or None,
    }


def _switches(given: Args, network: Args) -> dict[str, object]:
    dropouts = {f: number_of(_pop_either(given, network, f)) or None for f in ("rank_dropout", "module_dropout")}
    is_decomposed = flag_of(_pop_either(given, network, "dora_wd"))
    on_outputs = _pop_either(given, network, "wd_on_output")
    stabilized = flag_of(_pop_either(given, network, "rs_lora"))
    axis = on_outputs is None or flag_of(on_outputs)  # LyCORIS' default
    decomposed = {"decompose": True, "decompose_output_axis": axis} if is_decomposed else {}
    return {**dropouts, **decomposed, "rank_stabilized": stabilized or None}


def _rates(given: Args, network: Args, notes: Notes) -> dict[str, object]:
    names = ("loraplus_lr_ratio", "loraplus_unet_lr_ratio", "loraplus_text_encoder_lr_ratio")
    ratios = [number_of(_pop_either(given, network, name)) for name in names]
    unique = {ratio for ratio in ratios if ratio}
    if len(unique) > 1:
        message = f"LoRA+ had several ratios, {', '.join(f'{r:g}' for r in sorted(unique))}; all parts have the first."
        notes.append(Problem("adapter.lora_plus_ratio", message, "warning"))
    return {"lora_plus_ratio": next((ratio for ratio in ratios if ratio), None)}


def _numbers(value: object) -> list[float]:
    """Return numbers from a list, or from text with commas; empty if any entry is not a number."""
    texts = value if isinstance(value, list | tuple) else str(value).split(",") if value is not None else []
    numbers = [number_of(text) for text in texts]
    return [number for number in numbers if number is not None] if None not in numbers else []


def _lines(dims: Sequence[float], alphas: Sequence[float], pattern: str, notes: Notes) -> list[str]:
    """Return lines of our setting "ranks by layer", one for all blocks with the same rank and alpha."""
    num_middle = {25: 1, 21: 3}.get(len(dims))
    if num_middle is None:
        message = f"The ranks of {len(dims)} blocks are left out: 25 are known for SD, 21 for SDXL."
        notes.append(Problem("adapter.layer_ranks", message, "warning"))
        return []
    alphas = alphas if len(alphas) == len(dims) else [0.0] * len(dims)
    blocks: dict[str, list[str]] = {}
    for number, (dim, alpha) in enumerate(zip(dims, alphas, strict=True)):
        value = f"{int(dim)}:{alpha:g}" if alpha and dim else f"{int(dim)}"  # with 0 a block has no adapter
        blocks.setdefault(value, []).extend(_names(number, len(dims), num_middle, pattern))
    return [f"re:^({'|'.join(dict.fromkeys(names))}) = {value}" for value, names in blocks.items() if names]


def _names(number: int, num_blocks: int, num_middle: int, pattern: str) -> Collection[str]:
    """Return the expressions for the names of the layers of one of kohya's blocks."""
    num_down = (num_blocks - num_middle) // 2
    if num_down <= number < num_down + num_middle:
        return _in_middle(number - num_down, num_middle, pattern)
    is_down = number < num_down
    index = number - 1 if is_down else number - num_down - num_middle  # the first block down has no LoRA
    if index < 0:
        return []
    block, n = divmod(index, _PER_BLOCK)
    way, resampling = ("down", "downsamplers") if is_down else ("up", "upsamplers")
    prefix = f"{way}_blocks.{block}."
    if pattern == _ATTENTION and prefix in _WITHOUT_ATTENTION[num_blocks]:
        return []
    more = [f"{prefix}{resampling}"] if pattern == _CONV and n == _PER_BLOCK - 1 else []
    return [prefix + pattern.format(n=n), *more]


def _in_middle(number: int, num_middle: int, pattern: str) -> list[str]:
    """Return the expressions for a block in the middle: SD has one, SDXL a resnet, its attention, and a resnet."""
    if num_middle == 1:
        return ["mid_block." + pattern.format(n="[01]")]
    if number == 1:
        return [] if pattern == _CONV else ["mid_block.attentions"]
    if pattern == _ATTENTION:
        return []
    return ["mid_block." + pattern.format(n=number // 2).replace(f"attentions.{number // 2}|", "")]
