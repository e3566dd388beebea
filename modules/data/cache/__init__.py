"""The content-addressed cache of encoded images and captions."""
