"""JSON Schemas of the output of commands with ``--json``; ``docs/output_schemas.py`` makes them."""
