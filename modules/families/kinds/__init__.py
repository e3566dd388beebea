"""The kinds of model files and folders, one file each: detection, uses, conversion, and which programs load it."""
