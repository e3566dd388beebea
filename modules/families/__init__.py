"""The model families, one folder each, with the same file names: spec, model, files.

Model classes of our own are in transformer.py, unet.py, prior.py or autoencoder.py.
"""
