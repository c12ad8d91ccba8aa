"""JSON Schemas of what commands print with ``--json``; ``docs/output_schemas.py`` makes them."""
