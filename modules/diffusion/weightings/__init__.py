"""The loss weightings, one record each, with their formulas. Torch-free: tensors bring their own methods."""
