"""The names of the inputs of inpainting models, for the records of families; the inputs are in `inputs`."""

INPAINTING = ("mask", "masked_image")
"""The inputs of inpainting models, in the order of their channels."""

PIXEL_INPAINTING = ("masked_image", "mask_pixels")
"""The inputs of inpainting models that get the pixels of the mask, 8 x 8 for each latent, in the order of channels."""
