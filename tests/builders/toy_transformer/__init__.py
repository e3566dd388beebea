"""A toy flow-matching transformer with Z-Image's classes: the proof that a family is its own folder and one line.

Its transformer reads prompts of any length as lists of states, and `1 - sigma` as its time; its output is negated. Its
text encoder is a Qwen3, its VAE has 16 channels and a shift. Tests register it (`registered`); no other file of the
program knows it.
"""
