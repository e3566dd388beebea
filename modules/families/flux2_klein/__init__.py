"""FLUX.2 klein: a flow-matching transformer that reads prompts through Qwen3 (Black Forest Labs, 2026)."""
