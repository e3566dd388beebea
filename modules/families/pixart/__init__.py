"""PixArt alpha and sigma: small diffusion transformers that read prompts through T5 (2023, 2024)."""
