"""Quantized frozen weights: their formats, and the layer that computes with them."""
