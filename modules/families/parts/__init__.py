"""What families share, once: CLIP text, tokenizers, the VAE, the reading of folders."""
