"""Samples without a run: any model, with adapters and embeddings, in grids."""
