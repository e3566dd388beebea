"""Import configs of other programs, and the settings stored in files they made. Does not import torch."""
