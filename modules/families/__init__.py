"""The model families. One folder each, with the same file names: spec, load, forward, files, memory."""
