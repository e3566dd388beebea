"""Krea 2: a flow-matching transformer that reads prompts through twelve layers of Qwen3-VL (Krea AI, 2026)."""
