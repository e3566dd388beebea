"""Strengths per block of a LoRA: every layer's change times the strength of the block that it is in.

The blocks of a UNet have the names of the original layout, IN00 to IN11, M00, OUT00 to OUT11 (fewer for smaller ones);
BASE is everything else, such as the text encoders. Strengths are given as by A1111's users ("LoRA block weight"): a
list of numbers for BASE and then the blocks in order, all of them or only those with attention (17 or 26 for SD, 12 or
20 for SDXL), or as names with numbers: `down=1, mid=0.5, OUT03=0, text=0.8`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from modules.adapters.start import changes_weight
from modules.adapters.tools.opening import content_of, require_linear
from modules.adapters.tools.results import LoraResult
from modules.families.kinds.conversion import Source
from modules.families.registry import published_model
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_targets import AdapterTarget
from modules.formats.adapter_types import adapter_type, depends_on_weight
from modules.system.errors import DarkroomError
from modules.system.problem import count

BASE = "BASE"
PRESETS: Mapping[str, str] = {
    "all": "1",
    "only the UNet": "1, text=0",
    "only text encoders": "0, text=1",
    "only down blocks": "0, down=1",
    "only the middle": "0, mid=1",
    "only up blocks": "0, up=1",
    "without down blocks": "1, down=0",
    "without the middle": "1, mid=0",
    "without up blocks": "1, up=0",
}
"""Texts for common choices, by what they do."""
_GROUPS = {"down": "IN", "in": "IN", "mid": "M", "middle": "M", "up": "OUT", "out": "OUT"}
_BLOCK = re.compile(r"^(input_blocks|middle_block|output_blocks)(?:\.(\d+))?(?:\.|$)")
_STARTS = {"input_blocks": "IN", "middle_block": "M", "output_blocks": "OUT"}
_ATTENTION = ".attn"
_MANY = 5  # as many numbers are a list of blocks
_ORDER = {"BASE": 0, "IN": 1, "M": 2, "OUT": 3}


@dataclass(frozen=True, slots=True)
class BlockStrengths:
    """Strengths in the order in which they were given; the last one that matches a layer counts.

    Each is for a name: a block, a group (`down`, `mid`, `up`, `text`, `BASE`), a pattern with * for the part and the
    path of a layer, or "*" for everything.
    """

    given: tuple[tuple[str, float], ...]

    def of(self, target: AdapterTarget) -> float:
        """Return the strength of a layer; 1 if no name matches it."""
        fitting = [strength for name, strength in self.given if _fits(name, target)]
        return fitting[-1] if fitting else 1.0


def block_of(target: AdapterTarget) -> str:
    """Return the name of the block that contains a layer, such as IN04; BASE for a layer outside the blocks."""
    match = _BLOCK.match(target.paths.get("original", ""))
    if not match:
        return BASE
    start = _STARTS[match[1]]
    return "M00" if start == "M" else f"{start}{int(match[2]):02d}"


def blocks_in(targets: Sequence[AdapterTarget]) -> dict[int, tuple[str, ...]]:
    """Return the lists of blocks of a model by their length: BASE and all blocks, and BASE and those with attention."""
    every = {block_of(t) for t in targets} | {BASE}
    attending = {block_of(t) for t in targets if _ATTENTION in t.path and t.paths.get("original")} | {BASE}
    lists = (tuple(sorted(names, key=_place)) for names in (every, attending))
    return {len(names): names for names in lists}


def parse_strengths(text: str, targets: Sequence[AdapterTarget]) -> BlockStrengths:
    """Return the strengths that a text gives for a model with these layers.

    Raises DarkroomError for a text that cannot be read, a number of strengths that fits no list of the model's blocks,
    and a name that no layer has.
    """
    words = [word.strip() for word in re.split(r"[,;\n]", PRESETS.get(text.strip(), text)) if word.strip()]
    if not words:
        raise DarkroomError("No strengths are given.", advice=_how_to_write(targets))
    if len(words) >= _MANY and all("=" not in word for word in words):
        return _from_list([_number(word, text, targets) for word in words], targets)
    given: list[tuple[str, float]] = []
    for word in words:
        name, _, value = word.partition("=") if "=" in word else ("*", "=", word)
        name = name.strip()
        if not any(_fits(name, target) for target in targets):
            raise DarkroomError(f"No layer of this model belongs to {name!r}.", advice=_how_to_write(targets))
        given.append((name, _number(value.strip(), text, targets)))
    return BlockStrengths(tuple(given))


def scale_blocks(source: Source, text: str) -> LoraResult:
    """Return an opened adapter file with the change of each layer times the strength that a text gives its block.

    Layers of strength 0 are left out. Raises DarkroomError for a text that cannot be read, and where a layer whose
    change depends on the model's weights (`depends_on_weight`) has a strength other than 0 or 1.
    """
    content = content_of(source)
    targets = published_model(source.kind.model).adapter_targets(source.configs).all
    strengths = parse_strengths(text, targets)
    places = {(t.part, t.path): t for t in targets}
    layers: list[AdapterLayer] = []
    num_scaled = 0
    for layer in content.layers:
        strength = strengths.of(places[layer.part, layer.path])
        num_scaled += strength not in (0.0, 1.0)
        if strength:
            layers.append(_scale_layer(layer, strength, source.path.name))
    if not layers:
        raise DarkroomError(
            f"With these strengths nothing of {source.path.name} is left.", advice="Give some block a strength."
        )
    num_out = len(content.layers) - len(layers)
    sentence = f"{count(num_scaled, 'layer')} scaled, {num_out:,} left out (strength 0), of {len(content.layers):,}."
    return LoraResult(tuple(layers), content.extra_tensors, (sentence,))


def _scale_layer(layer: AdapterLayer, strength: float, where: str) -> AdapterLayer:
    if strength == 1.0:
        return layer
    require_linear(where, [layer], f"scaled by {strength:g}")
    assert not depends_on_weight(layer.factors)
    names = {name for name in ("diff_b", "b_norm") if name in layer.factors}
    if changes_weight(layer):
        names.add(next(name for name in _scalable_factors(layer) if name in layer.factors))
    factors = {n: (f.float() * strength).to(f.dtype) if n in names else f for n, f in layer.factors.items()}
    return replace(layer, factors=factors)


def _scalable_factors(layer: AdapterLayer) -> tuple[str, ...]:
    kind = adapter_type(layer.factors)
    return kind.scaled if kind is not None else ()


def _fits(name: str, target: AdapterTarget) -> bool:
    block, lowered = block_of(target), name.lower()
    if lowered in ("text", "te"):
        return target.is_text
    if lowered == "unet":
        return not target.is_text
    if lowered in _GROUPS:
        return block.rstrip("0123456789") == _GROUPS[lowered]
    if name.upper() == BASE or re.fullmatch(r"(IN|OUT|M)\d+", name.upper()):
        return block == _full_name(name.upper())
    full = f"{target.part}.{target.path}"
    return fnmatch.fnmatchcase(full, name) or (bool(name.strip("*")) and name.strip("*") in full and "*" not in name)


def _full_name(name: str) -> str:
    start, digits = name.rstrip("0123456789"), name[len(name.rstrip("0123456789")) :]
    return f"{start}{int(digits):02d}" if digits else name


def _from_list(values: Sequence[float], targets: Sequence[AdapterTarget]) -> BlockStrengths:
    lists = blocks_in(targets)
    names = lists.get(len(values))
    if names is None:
        fitting = " or ".join(str(length) for length in sorted(lists))
        raise DarkroomError(
            f"{len(values)} strengths are given. A list for this model has {fitting}: BASE, then its blocks.",
            advice=_how_to_write(targets),
        )
    return BlockStrengths((("*", 0.0), *zip(names, values, strict=True)))


def _number(word: str, text: str, targets: Sequence[AdapterTarget]) -> float:
    try:
        value = float(word)
    except ValueError:
        raise DarkroomError(f"{word!r} in {text!r} is not a number.", advice=_how_to_write(targets)) from None
    if not abs(value) <= 100:
        raise DarkroomError(f"A strength of {word} is too large.", advice="Give strengths from -100 to 100.")
    return value


def _how_to_write(targets: Sequence[AdapterTarget]) -> str:
    names = max(blocks_in(targets).values(), key=len, default=())
    return f"Write names with strengths, as in: down=1, mid=0.5, up=0, text=1. The blocks are {', '.join(names)}."


def _place(name: str) -> tuple[int, str]:
    return _ORDER[name.rstrip("0123456789")], name
