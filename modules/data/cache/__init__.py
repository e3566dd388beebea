"""The content-addressed cache of encoded pictures and captions."""
