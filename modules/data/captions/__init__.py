"""Captions, from their source to the text that is encoded.

1. `sources`: the texts of an image; every line of a file is one, and all are kept.
2. `settings`: the settings of a concept's captions, and the choice of one text for each use of the image.
3. `rules`: the settings, checked and parsed into the rules of `operations`.
4. `operations` and `tags`: changes to the text, in one order (`ORDER`), drawn from a generator.
5. `drawing`: the final text of a use, which may be dropped instead; the generator follows from seed and counters.
6. `seen`: the text alone, or with the reference images that a text encoder reads together with it.

`caption_file` is for the window's editor: it rewrites a file without changing anything but the edited text.
"""
