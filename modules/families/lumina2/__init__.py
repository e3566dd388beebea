"""Lumina-Image 2.0: one transformer over the tokens of text and image, which reads prompts through Gemma 2 (2025)."""
