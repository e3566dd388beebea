"""The dataset doctor: what is probably wrong with the images and captions of a run, found before it.

1. `measure`: what the pixels of each image show, from one reduced decoding.
2. `examined`: everything the checks look at, as data.
3. `registry`: the checks, each a record with a pure function from that data to findings.
4. `report` and `page`: the findings as a table, as JSON and as an HTML page.

Nothing here changes a file.
"""
