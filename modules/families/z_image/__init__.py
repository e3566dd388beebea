"""Z-Image: a flow-matching transformer that reads prompts through Qwen3 (arXiv 2511.22699)."""
