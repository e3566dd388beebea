"""Detects LoRA files and their relatives (formats.md 5.1): suffixes of names give the adapter type, prefixes the model.
Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modules.families.kinds.file_kind import FileKind, Prediction
from modules.families.kinds.lora_programs import lora_loads
from modules.families.kinds.record import FileKindSpec
from modules.families.registry import all_files, family_of, label_of, model_of_text_width
from modules.formats.checkpoint_header import CheckpointHeader

# Suffixes of each adapter type; the first match decides.
_SORTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("LoHa", (".hada_w1_a", ".hada_w2_a")),
    ("LoKr", (".lokr_w1", ".lokr_w1_a", ".lokr_w2", ".lokr_w2_a")),
    ("OFT", (".oft_blocks", ".oft_diag", ".oft_R.weight")),
    ("GLoRA", (".a1.weight", ".b1.weight")),
    ("LoRA", (".lora_up.weight", ".lora_down.weight", ".lora_A.weight", ".lora_B.weight", ".lora.up.weight")),
    ("full difference", (".diff", ".diff_b")),
)
_SGM = ("lora_unet_input_blocks", "lora_unet_middle_block", "lora_unet_output_blocks", "lora_unet_label_emb")
_DIFFUSERS = ("lora_unet_down_blocks", "lora_unet_mid_block", "lora_unet_up_blocks", "lora_unet_conv_in")
_MODEL_KEYS = ("ss_v2", "ss_base_model_version", "modelspec.architecture")
_OTHERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Flux", ("double_blocks", "single_blocks", "single_transformer_blocks", "double_stream")),
    ("Stable Diffusion 3", ("joint_blocks",)),
    ("a video or another transformer model", ("transformer.", "lora_transformer_", "lora_unet_blocks_", "self_attn_q")),
)


def adapter_kind(header: CheckpointHeader) -> FileKind | None:
    """Return the file's kind if it is an adapter (LoRA, LyCORIS or OFT), for any model."""
    sort = next((s for s, ends in _SORTS if any(n.endswith(ends) for n in header.shapes)), "")
    if not sort or not _looks_like_adapter(header):
        return None
    facts = {"adapter": sort, "form": _form(header), "dtype": header.main_dtype}
    if any(n.endswith(".dora_scale") or ".lora_magnitude_vector" in n for n in header.shapes):
        facts["adapter"] = f"DoRA ({sort})"
    if names := _names(header):
        facts["names"] = names
    if ranks := _ranks(header.shapes):
        facts["rank"] = "-".join(map(str, sorted({min(ranks), max(ranks)})))
    facts["layers"] = str(_num_layers(header.shapes, facts["form"]))
    if header.has("bundle_emb."):
        facts["embeddings"] = "bundled"
    other = _other_model(header.shapes)
    model = "" if other else _model(header)
    label = other or (label_of(model) or "an unknown model")
    rank = f" of rank {facts['rank']}" if "rank" in facts else ""
    return FileKind(
        kind="lora",
        sentence=f"A {facts['adapter']}{rank} for {label}, in {facts['form']} form, {facts['dtype']}.",
        family=family_of(model),
        model=model,
        prediction=_prediction(header.metadata),
        facts=facts,
    )


def _looks_like_adapter(header: CheckpointHeader) -> bool:
    """Whether the file is only an adapter: a whole model with leftover adapter tensors is still a model."""
    return not header.has("model.diffusion_model.input_blocks", "first_stage_model.")


def _form(header: CheckpointHeader) -> str:
    if header.has("lora_unet_", "lora_te", "oft_unet_", "lora_transformer_"):
        return "kohya"
    if header.has("lycoris_"):
        return "lycoris"
    if header.has("diffusion_model.", "text_encoders."):
        return "comfy"
    if any(n.endswith((".lora_A.weight", ".lora.up.weight", ".lora_R.weight")) for n in header.shapes):
        return "diffusers"
    return "unknown"


def _num_layers(names: Iterable[str], form: str) -> int:
    """Return how many layers of a model have an adapter. kohya's names end before the first dot."""
    if form == "kohya":
        return len({n.split(".", 1)[0] for n in names if not n.startswith("bundle_emb.")})
    return len({n.split(".lora", 1)[0] for n in names if ".lora" in n})


def _names(header: CheckpointHeader) -> str:
    sgm, diffusers = header.has(*_SGM), header.has(*_DIFFUSERS)
    if sgm and diffusers:
        return "mixed"
    return "sgm" if sgm else "diffusers" if diffusers or header.has("unet.") else ""


def _ranks(shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
    ends = (".lora_down.weight", ".lora_A.weight", ".lora.down.weight", ".hada_w1_b", ".lokr_w2_b")
    return [s[0] for n, s in shapes.items() if n.endswith(ends) and s]


def _other_model(names: Iterable[str]) -> str:
    """Return the model an adapter is for, where it is not a supported one."""
    names = [n for n in names if not n.startswith(("lora_te", "text_encoder", "bundle_emb"))]
    for label, parts in _OTHERS:
        if any(part in name for name in names for part in parts):
            return "" if any("transformer_blocks" in n and "attn2" in n for n in names) else label
    return ""


def _model(header: CheckpointHeader) -> str:
    """Return which model an adapter is for: by the width of its cross-attention's input, by its encoders, by its
    metadata.
    """
    for name, shape in header.shapes.items():
        if name.endswith(("lora_down.weight", "lora_A.weight", "lora.down.weight")) and len(shape) > 1:
            layer = name.replace(".", "_")
            is_cross = "attn2_to_k" in layer or "attn2_to_v" in layer
            if is_cross and (model := model_of_text_width(shape[1])):
                return model
    families = list(all_files())
    for begins, model in (marker for files in families for marker in files.lora_markers):
        if header.has(begins):
            return model
    words = " ".join(f"{n}={header.metadata.get(n, '')}" for n in _MODEL_KEYS).lower()
    return next((model for files in families for word, model in files.lora_words if word in words), "")


def _prediction(metadata: Mapping[str, str]) -> Prediction:
    word = metadata.get("modelspec.prediction_type", "")
    if word in ("v", "v_prediction") or metadata.get("ss_base_model_version", "").endswith("_v"):
        return "v_prediction"
    return "epsilon" if word == "epsilon" else ""


LORA = FileKindSpec(
    name="lora",
    label="LoRA",
    help="An adapter for a model: LoRA, LyCORIS or OFT.",
    detect=adapter_kind,
    uses=frozenset({"start of an adapter"}),
    forms=("kohya", "peft"),
    opener="modules.families.kinds.lora_conversion:open_lora",
    writer="modules.families.kinds.lora_conversion:write_lora",
    loads=lora_loads,
)
