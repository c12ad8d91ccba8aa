"""Operations on single elements, each with its reference and error bound."""
