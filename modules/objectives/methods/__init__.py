"""The records of the training methods, torch-free. Their code is in `trainer/methods/`."""
