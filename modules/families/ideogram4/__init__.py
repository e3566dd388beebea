"""Ideogram 4: a flow-matching transformer that reads prompts through thirteen layers of Qwen3-VL (Ideogram, 2026)."""
