"""Proofs of properties of compiled kernels for all sizes of their problems: see ``gemmgen.proof.prover``.

The package reads PTX and the preconditions of a launch sequence; it knows no kernel family. It needs z3-solver (``gemmgen[proof]``).
"""
