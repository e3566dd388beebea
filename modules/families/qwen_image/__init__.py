"""Qwen-Image: a flow-matching transformer of two streams that reads prompts through Qwen2.5-VL (arXiv 2508.02324)."""
