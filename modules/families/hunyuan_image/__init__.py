"""HunyuanImage 2.1: a flow-matching transformer that reads prompts through Qwen2.5-VL and ByT5 (Tencent 2025)."""
