"""Sana: a transformer with linear attention over few, deep latents, which reads prompts through Gemma 2 (2024)."""
