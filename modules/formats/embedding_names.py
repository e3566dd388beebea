"""The names of tensors in files of embeddings."""

from __future__ import annotations

EMP_PARAMS = "emp_params"
"""OneTrainer's name of the vectors of a single encoder (with its typing error), and the name in our files."""
EMB_PARAMS = "emb_params"
"""kohya's name of them, and the name in our files until config version 2."""
OUTPUT_SUFFIX = "_out"
"""OneTrainer's suffix of the vectors at the output of an encoder."""
