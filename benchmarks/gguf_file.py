"""Writing a UNet as a GGUF file, as ComfyUI-GGUF and stable-diffusion.cpp do, to measure and test reading one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch


def write_gguf(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    *,
    kind: str = "Q8_0",
    flattens: bool = True,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors to a GGUF file: those of two and more axes in blocks of a type, the others in float32.

    `kind` is a type that the package gguf packs: Q8_0, Q5_1, Q5_0, Q4_1, Q4_0, F16 or BF16. With `flattens`, weights
    whose rows are no whole number of blocks, such as those of convolutions, are flattened, and their shapes kept in the
    metadata; without it, or where blocks remain incomplete, they are float32 (as in stable-diffusion.cpp).
    """
    import gguf

    packed = gguf.GGMLQuantizationType[kind]
    block, _ = gguf.GGML_QUANT_SIZES[packed]
    writer = gguf.GGUFWriter(path, "sdxl")
    for key, text in (metadata or {}).items():
        writer.add_string(key, text)
    for name, tensor in tensors.items():
        values = tensor.detach().float().contiguous().numpy()
        is_whole = values.ndim > 1 and values.shape[-1] % block == 0
        if not is_whole and (values.ndim < 2 or values.size % block or not flattens):
            writer.add_tensor(name, values)
            continue
        if not is_whole:
            writer.add_array(f"comfy.gguf.orig_shape.{name}", [int(n) for n in values.shape])
            values = values.reshape(-1, block)
        writer.add_tensor(name, gguf.quants.quantize(values, packed), raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
