"""The config: one declaration per field, frozen trees, total migrations, presets. Does not import torch."""
