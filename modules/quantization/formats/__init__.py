"""One format of quantized weights per file. Torch-free: what computes with a format is in `packing` and `products`."""
