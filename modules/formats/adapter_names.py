"""The names of tensors in adapter files: a layer and one factor of its change. Torch-free.

Each program has its own names for the same factor (formats.md 5.1); here they are those of kohya's files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

Shape = tuple[int, ...]
DOWN, UP, MID = "lora_down.weight", "lora_up.weight", "lora_mid.weight"
ALPHA, DORA_SCALE = "alpha", "dora_scale"
OFT_BLOCKS, OFT_VECTORS, RESCALE = "oft_blocks", "oft_R.weight", "rescale"
LORA_FACTORS = frozenset({DOWN, UP, MID, DORA_SCALE})
LOHA_FACTORS = frozenset({f"hada_{n}" for n in ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2")} | {DORA_SCALE})
LOKR_FACTORS = frozenset({f"lokr_{n}" for n in ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b", "t1", "t2")} | {DORA_SCALE})
OFT_FACTORS = frozenset({OFT_BLOCKS, "oft_diag", OFT_VECTORS, RESCALE})
GLORA_FACTORS = frozenset(f"{n}{bias}.weight" for n in ("a1", "a2", "b1", "b2") for bias in ("", ".bm"))
DIFFERENCE_FACTORS = frozenset({"diff", "diff_b", "set_weight", "w_norm", "b_norm"})
"""Whole differences from the model's weights and biases; `w_norm` and `b_norm` are LyCORIS' names for norm layers."""
FACTORS = LORA_FACTORS | LOHA_FACTORS | LOKR_FACTORS | OFT_FACTORS | GLORA_FACTORS | DIFFERENCE_FACTORS | {ALPHA}
# The factors that only one type of adapter has; the first match decides.
_TYPES = tuple(
    (name, factors - {DORA_SCALE})
    for name, factors in (
        ("LoHa", LOHA_FACTORS),
        ("LoKr", LOKR_FACTORS),
        ("OFT", OFT_FACTORS),
        ("GLoRA", GLORA_FACTORS),
        ("LoRA", LORA_FACTORS),
        ("full difference", DIFFERENCE_FACTORS),
    )
)
_MATRICES = (LORA_FACTORS | LOHA_FACTORS | LOKR_FACTORS) - {DORA_SCALE}
_BY_RANK = frozenset({DOWN, "hada_w1_b", "hada_w2_b", "lokr_w1_b", "lokr_w2_b"})  # their first axis is the rank
BUNDLED_EMBEDDING = "bundle_emb."

# Other programs' names of factors: PEFT's, then diffusers' before PEFT.
_OTHER_NAMES = {
    "lora_A.weight": DOWN,
    "lora_B.weight": UP,
    "lora_magnitude_vector": DORA_SCALE,
    "lora_magnitude_vector.weight": DORA_SCALE,
    "lora.down.weight": DOWN,
    "lora.up.weight": UP,
    "lora_linear_layer.down.weight": DOWN,
    "lora_linear_layer.up.weight": UP,
}
_BY_END = {factor: factor for factor in FACTORS} | _OTHER_NAMES
_LONGEST_END = 3  # dotted words in the longest of these names
# PEFT with the name of the adapter, as in a state dict: `lora_A.default.weight`.
_NAMED = {"lora_A": DOWN, "lora_B": UP, "lora_magnitude_vector": DORA_SCALE}
# diffusers' attention processors: `attn1.processor.to_q_lora.down.weight`, in text encoders `self_attn.to_q_lora...`.
_PROCESSORS = {"to_q_lora": "to_q", "to_k_lora": "to_k", "to_v_lora": "to_v", "to_out_lora": "to_out.0"}
_TEXT_PROCESSORS = {"to_q_lora": "q_proj", "to_k_lora": "k_proj", "to_v_lora": "v_proj", "to_out_lora": "out_proj"}
# Names with one dotted word for the whole layer, as in kohya's files: whatever follows the first dot is a factor.
_FLAT_LAYERS = ("lora_unet_", "lora_te_", "lora_te1_", "lora_te2_", "oft_unet_", "lycoris_")


def type_of(factors: Iterable[str]) -> str:
    """Return the type of an adapter with these factors: "LoRA", "LoHa", ...; empty for none of the known ones."""
    found = frozenset(factors)
    return next((name for name, own in _TYPES if found & own), "")


def lacking_factor(factors: Iterable[str]) -> str:
    """Return the name of a factor that a layer with these lacks; empty where its change is complete.

    Nothing is known to be lacking of the other types.
    """
    return next(_lacking(frozenset(factors) - {ALPHA}), "")


def _lacking(names: frozenset[str]) -> Iterator[str]:
    if names & {DOWN, UP, MID} or names == {DORA_SCALE}:
        yield from (name for name in (DOWN, UP) if name not in names)
    if names & (LOHA_FACTORS - {DORA_SCALE}):
        cores = ("hada_t1", "hada_t2") if names & {"hada_t1", "hada_t2"} else ()
        needed = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", *cores)
        yield from (name for name in needed if name not in names)
    if names == {RESCALE}:
        yield OFT_BLOCKS
    if names & (LOKR_FACTORS - {DORA_SCALE}):
        for side in ("lokr_w1", "lokr_w2"):
            halves = [f"{side}_a", f"{side}_b"]
            if side not in names and (missing := [name for name in halves if name not in names]):
                yield side if missing == halves else missing[0]


def damage_in(shapes: Mapping[str, Shape]) -> str:
    """Return what is wrong with the shapes of a LoRA, LoHa or LoKr layer alone, as a clause; empty if they can be.

    A matrix that is a single number has no axes to read, and a rank of 0 would divide alpha by 0.
    """
    for name, shape in shapes.items():
        if name in _MATRICES and not shape:
            return f"its {name} is a single number instead of a matrix"
        if name in _BY_RANK and not shape[0]:
            return f"its {name} has no rows"
    return ""


def layers_in(shapes: Mapping[str, Shape]) -> dict[str, dict[str, Shape]]:
    """Return the layers of a file by their names in it, each with the shapes of its factors by kohya's names."""
    layers: dict[str, dict[str, Shape]] = {}
    for name, shape in shapes.items():
        layer, factor = layer_and_factor(name)
        if layer:
            layers.setdefault(layer, {})[factor] = shape
    return layers


def layer_and_factor(name: str) -> tuple[str, str]:
    """Return the layer's name as it stands in the file, and kohya's name of the factor; ("", "") for any other tensor.

    A layer of diffusers' attention processors gets the name of its module, as in the PEFT form.
    """
    if name.startswith(BUNDLED_EMBEDDING):
        return "", ""
    words = name.rsplit(".", _LONGEST_END)
    if len(words) > _LONGEST_END and (found := _of_module(*words)):
        return found
    for first in range(1, len(words)):
        if factor := _BY_END.get(".".join(words[first:])):
            return ".".join(words[:first]), factor
    if len(words) > 2 and words[-2] == "lora_magnitude_vector":
        return ".".join(words[:-2]), DORA_SCALE
    layer, _, factor = name.partition(".")
    return (layer, factor) if factor and layer.startswith(_FLAT_LAYERS) else ("", "")


def second_copies(others: Iterable[str], layers: Collection[str]) -> list[str]:
    """Return those of the names of other tensors that belong to a layer which is written under the same name.

    A file can name a layer twice, such as `lora_te1_...` and `lora_te_...` of SD 1.5. Only one copy can be written, and
    a layer of two copies' factors would be neither.
    """
    return [name for name in others if layer_and_factor(name)[0] in layers]


def _of_module(layer: str, third: str, second: str, last: str) -> tuple[str, str] | None:
    """Return layer and factor where the last three words of a name are PEFT's with an adapter, or a processor's."""
    if third in _NAMED and last == "weight":
        return layer, _NAMED[third]
    if third in _PROCESSORS and second in ("down", "up") and last == "weight":
        layer = layer.removesuffix(".processor")
        names = _TEXT_PROCESSORS if layer.endswith("self_attn") else _PROCESSORS
        return f"{layer}.{names[third]}", DOWN if second == "down" else UP
    return None
