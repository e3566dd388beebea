"""Quantized frozen weights: formats, one file each, and the layer that computes with them."""
