"""The model families. One folder each, of same-named files: spec, load, text, forward, keys."""
