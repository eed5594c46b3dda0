"""Figures, from the records of runs only."""
