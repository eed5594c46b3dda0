"""Studies: many runs of the ordinary commands, evaluated together from their records."""
