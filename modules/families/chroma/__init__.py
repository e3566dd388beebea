"""Chroma1: FLUX.1 without its modulations, a flow-matching transformer that reads prompts through T5 (2025)."""
