"""The dataset doctor: probable problems of a run's images and captions, reported before the run.

1. `measure`: figures of each image's pixels, from one reduced decoding.
2. `finding`: everything the checks look at, as data, and a finding.
3. `..._checks`: the checks, each a record with a pure function from that data to findings; `report` lists them.
4. `report` and `page`: the findings as a table, as JSON and as an HTML page.
5. `fixes`: changes that lose nothing, which the user previews and can undo. Nothing else here changes a file.
"""
