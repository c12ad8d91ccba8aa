"""Strategy ``narrow_weights``: packed weights of 4 or 8 bits become the activations' type in registers (``mma.sync``, ``wgmma``)."""
