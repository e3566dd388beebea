"""The names of tensors in adapter files: a layer and one factor of its change. Torch-free.

Each program has its own names for the same factor (formats.md 5.1); here they are those of kohya's files.
"""

from __future__ import annotations

import re

DOWN, UP, MID = "lora_down.weight", "lora_up.weight", "lora_mid.weight"
ALPHA, DORA_SCALE = "alpha", "dora_scale"
LORA_FACTORS = frozenset({DOWN, UP, MID, DORA_SCALE})
LOHA_FACTORS = frozenset({f"hada_{n}" for n in ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2")} | {DORA_SCALE})
LOKR_FACTORS = frozenset({f"lokr_{n}" for n in ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b", "t1", "t2")} | {DORA_SCALE})
OFT_FACTORS = frozenset({"oft_blocks", "oft_diag", "oft_R.weight", "rescale"})
GLORA_FACTORS = frozenset(f"{n}{bias}.weight" for n in ("a1", "a2", "b1", "b2") for bias in ("", ".bm"))
DIFFERENCE_FACTORS = frozenset({"diff", "diff_b", "set_weight", "w_norm", "b_norm"})
"""Whole differences from the model's weights and biases; `w_norm` and `b_norm` are LyCORIS' names for norm layers."""
FACTORS = LORA_FACTORS | LOHA_FACTORS | LOKR_FACTORS | OFT_FACTORS | GLORA_FACTORS | DIFFERENCE_FACTORS | {ALPHA}
BUNDLED_EMBEDDING = "bundle_emb."

# Other programs' names of factors: PEFT's with and without an adapter's name, then diffusers' before PEFT.
_OTHER_NAMES = {
    "lora_A.weight": DOWN,
    "lora_B.weight": UP,
    "lora_A.default.weight": DOWN,
    "lora_B.default.weight": UP,
    "lora_magnitude_vector": DORA_SCALE,
    "lora_magnitude_vector.weight": DORA_SCALE,
    "lora_magnitude_vector.default.weight": DORA_SCALE,
    "lora.down.weight": DOWN,
    "lora.up.weight": UP,
    "lora_linear_layer.down.weight": DOWN,
    "lora_linear_layer.up.weight": UP,
}
_ENDS = sorted(((end, end) for end in FACTORS), key=lambda pair: -len(pair[0])) + sorted(
    _OTHER_NAMES.items(), key=lambda pair: -len(pair[0])
)
# diffusers' attention processors: `attn1.processor.to_q_lora.down.weight`.
_PROCESSOR = re.compile(r"^(.*?)(?:\.processor)?\.(to_[qkv]|to_out)_lora\.(down|up)\.weight$")


def layer_and_factor(name: str) -> tuple[str, str]:
    """Return the layer's name as it stands in the file, and kohya's name of the factor; ("", "") for any other tensor.

    A layer of diffusers' attention processors gets the name of its module, as in the PEFT form.
    """
    if name.startswith(BUNDLED_EMBEDDING):
        return "", ""
    if old := _PROCESSOR.match(name):
        target = f"{old[2]}.0" if old[2] == "to_out" else old[2]
        return f"{old[1]}.{target}", DOWN if old[3] == "down" else UP
    for end, factor in _ENDS:
        if name.endswith(f".{end}"):
            return name[: -len(end) - 1], factor
    return "", ""
