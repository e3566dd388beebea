"""Qwen-Image 2.1: a flow-matching transformer of one stream that reads prompts through Qwen3-VL (Qwen, 2026)."""
