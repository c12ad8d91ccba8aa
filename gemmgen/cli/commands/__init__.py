"""One module for each command, with an attribute ``command``."""
