"""The proof that an instance is right: its cases, run on a backend and held against a reference."""
