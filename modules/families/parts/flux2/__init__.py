"""The shared code of FLUX.2 dev and FLUX.2 klein: the transformer, the VAE, all but the prompts and the guidance."""
