"""Tools for adapter files: merge into a model, combine, resize, extract, scale by block."""
