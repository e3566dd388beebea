"""The losses of training, and the records of the training methods."""
