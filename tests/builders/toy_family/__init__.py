"""A toy family that diffuses pixels, without a VAE: the proof that a family is its own folder and one registry line.

Ho et al. 2020, "Denoising Diffusion Probabilistic Models", conditioned by a CLIP text encoder.
"""
