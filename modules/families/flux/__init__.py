"""FLUX.1: a flow-matching transformer that reads prompts through CLIP-L and T5-XXL (Black Forest Labs, 2024)."""
