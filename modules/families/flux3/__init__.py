"""FLUX.3: a flow-matching transformer that reads prompts through Qwen3-VL (Black Forest Labs, 2026)."""
