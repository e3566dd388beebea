"""Anima: Cosmos-Predict2's flow-matching transformer for illustrations, which reads prompts through Qwen3 (2026)."""
