"""Captions, from their source to the text that is encoded.

The order of a caption's way:

1. `sources`: the texts of an image; every line of a file is one, and all are kept.
2. `settings`: the choice of one of them for each use of the image.
3. `operations`: changes to the text, in one order (`ORDER` there), drawn from a generator.
4. `drawing`: the final text of a use, which may be dropped instead; the generator follows from seed and counters.
"""
