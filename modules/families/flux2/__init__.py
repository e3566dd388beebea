"""FLUX.2 dev: a flow-matching transformer that reads prompts through Mistral-Small (Black Forest Labs, 2025)."""
