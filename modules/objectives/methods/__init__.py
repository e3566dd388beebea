"""The training methods, one record each, torch-free. What a method does is in `trainer/methods/`."""
