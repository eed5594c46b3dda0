"""What each process of a run does, independent of the algorithm."""
