"""The loss weightings, one record each, with their formulas. Torch-free: they only call methods of their tensors."""
