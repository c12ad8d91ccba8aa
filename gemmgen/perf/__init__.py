"""The cost of an instance: counted, timed, analysed."""
