"""Strategy of float32 products on tensor cores: operands are split into matrices of smaller types (3xTF32, BF16x6)."""
