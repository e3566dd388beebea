"""The rewards that load a model or run the user's own function. They import torch."""
