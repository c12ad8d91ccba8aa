"""The functions of ``gemmgen.ops``: a module for each, named like it, which is imported when it is first used."""
