"""The config: one declaration per field, frozen trees, total migrations, presets. Torch-free."""
