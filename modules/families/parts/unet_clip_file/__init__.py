"""Single files of models with a UNet and CLIP text encoders, in LDM's layout (Rombach et al.)."""
