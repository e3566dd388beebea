"""How a step updates weights: sliced, through master weights, inside the backward pass, limited in norm."""
