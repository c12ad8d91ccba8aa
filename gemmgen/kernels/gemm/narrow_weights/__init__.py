"""Strategy ``narrow_weights``: weights of 4 or 8 bits, packed beforehand, become the activations' type in registers (``mma.sync``)."""
