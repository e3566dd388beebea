"""From an image file to pixels of the training size."""
