"""Choice of the instance that fits a problem best: candidates, tables of measured times, a model for the rest, and the choice."""
