"""Studies: many runs of the ordinary commands, and what their records say together."""
