"""The input of a layer as its adapter takes it: in the dtype of the adapter's weights, unless autocast casts it anyway.

A cast to float32 in front of a product that autocast computes in 16 bits changes nothing: a 16-bit value is exact in
float32, and so is its gradient. But it costs two kernels for each layer and pass, and autograd keeps another copy of
the input for each adapter, where layers with the same input (query, key and value) could share it.
"""

from __future__ import annotations

import torch


def layer_input(x: torch.Tensor, dtype: torch.dtype, *, keeps_cast: bool) -> torch.Tensor:
    """Return a layer's input for a product with adapter weights of this dtype.

    `keeps_cast` is for inputs whose cast does change something: with dropout before the product, because its random
    numbers depend on the dtype, and for several products, whose gradients are added before they are rounded.
    """
    if dtype == torch.float32 and not keeps_cast and _is_autocast(x):
        return x
    return x.to(dtype)


def _is_autocast(x: torch.Tensor) -> bool:
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)
