"""Wuerstchen 2: a prior over the embeddings of an EfficientNet, which two more stages decode (2023)."""
