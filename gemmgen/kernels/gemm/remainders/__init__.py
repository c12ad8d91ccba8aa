"""Strategy of float64 products on tensor cores: products of 8-bit integers, the remainders of scaled factors modulo small numbers."""
