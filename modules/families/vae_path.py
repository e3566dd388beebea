"""Where the weights of a VAE are: a file, a diffusers folder of a VAE, or one of a whole model. Torch-free."""

from __future__ import annotations

from pathlib import Path

_IN_FOLDER = ("diffusion_pytorch_model.safetensors", "vae/diffusion_pytorch_model.safetensors")


def vae_weights_at(path: Path) -> Path:
    """Return the file with a VAE's weights at a path; the path itself where it is a file or has none that is known."""
    return next((file for name in _IN_FOLDER if (file := path / name).is_file()), path)
