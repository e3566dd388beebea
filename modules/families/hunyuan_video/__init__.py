"""HunyuanVideo for images: a flow-matching transformer that reads prompts through Llama 3 and CLIP-L (Tencent 2024)."""
