"""Automatic captions and masks for a folder of images, with progress, in a process of their own."""
