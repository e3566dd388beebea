"""What FLUX.2 dev and FLUX.2 klein share: the transformer, the VAE, and everything but the prompts and the guidance."""
