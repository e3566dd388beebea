"""The metadata of a converted adapter file: those of the old file that stay true, and kohya's minimum set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from modules.families.kinds.record import Form
from modules.families.published import PublishedModel
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import LORA_FACTORS
from modules.formats.adapter_types import ALPHA, DORA_SCALE, adapter_type, adapter_types
from modules.formats.lora_files import rank_and_alpha, ranks_and_alphas
from modules.formats.peft_settings import PEFT_SETTINGS
from modules.formats.safetensors_io import PAYLOAD_SHA256

_STALE = frozenset({PEFT_SETTINGS, "sshs_legacy_hash"})  # they describe the tensors of the old file
_LOCON = "locon"  # LyCORIS' name of LoRA on linear layers and convolutions
_NORMS = frozenset({"w_norm", "b_norm"})
_TUCKER_ARGS, _NORM_ARGS = ("use_tucker", "use_cp"), ("train_norm",)


def converted_metadata(
    old: Mapping[str, str], layers: Sequence[AdapterLayer], record: PublishedModel, form: Form
) -> dict[str, str]:
    """Return the metadata of a file with these layers, beside what its form needs.

    sd-scripts' minimum set is added in kohya form, for A1111 and Forge read it. Rank and alpha are those of the layers
    where the old file's are not among them.
    """
    metadata = {name: value for name, value in old.items() if name not in _STALE}
    if form == "kohya":
        module, args = _network(layers)
        metadata = {
            "ss_base_model_version": record.kohya_version,
            "ss_v2": str(record.is_v2),
            "ss_network_module": module,
            "ss_network_args": json.dumps(args),
            "modelspec.sai_model_spec": "1.0.1",
            "modelspec.architecture": f"{record.architecture}/lora",
        } | metadata
    if usual := rank_and_alpha(layers):
        ranks, alphas = zip(*ranks_and_alphas(layers), strict=True)
        for name, own, value in (("ss_network_dim", ranks, usual[0]), ("ss_network_alpha", alphas, usual[1])):
            if (form == "kohya" or name in metadata) and not _is_among(metadata.get(name, ""), own):
                metadata[name] = f"{value:g}"
    if form == "peft" and "ss_network_args" in metadata:
        metadata["ss_network_args"] = _plain_args(metadata["ss_network_args"])
    return metadata | {"sshs_model_hash": PAYLOAD_SHA256, "modelspec.hash_sha256": f"0x{PAYLOAD_SHA256}"}


def _is_among(text: str, values: Sequence[float]) -> bool:
    try:
        return float(text) in values
    except ValueError:
        return False


def _network(layers: Sequence[AdapterLayer]) -> tuple[str, dict[str, str]]:
    """Return the module and the arguments that would make such layers, as kohya's trainers name them."""
    factors = {factor for layer in layers for factor in layer.factors}
    # Norms are trained by any network; a file with plain LoRA and another type is of a network of the other.
    own = adapter_type(factors - LORA_FACTORS - _NORMS - {ALPHA})
    args = {"algo": own.algo if own is not None and own.algo else _LOCON}
    if any(t.has_tucker_core(factors) for t in adapter_types()):
        args["use_tucker"] = "True"
    if "w_norm" in factors:
        args["train_norm"] = "True"
    if DORA_SCALE in factors:
        args["dora_wd"] = "True"
    return ("networks.lora", {}) if args == {"algo": _LOCON} else ("lycoris.kohya", args)


def _plain_args(text: str) -> str:
    """Return `ss_network_args` without what the PEFT form does not hold: Tucker's form and trained norms."""
    try:
        args = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(args, dict):
        return text
    return json.dumps({name: value for name, value in args.items() if name not in (*_TUCKER_ARGS, *_NORM_ARGS)})
