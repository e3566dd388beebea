"""ERNIE-Image: a flow-matching transformer that reads prompts through Ministral 3 (Baidu, 2026)."""
