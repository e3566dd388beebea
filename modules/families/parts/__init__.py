"""The code that families share: CLIP text encoders, tokenizers, the VAE, reading of model files."""
