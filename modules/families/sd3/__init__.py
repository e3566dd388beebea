"""Stable Diffusion 3 and 3.5: a flow-matching transformer that reads prompts through two CLIPs and T5-XXL (2024)."""
