"""What each process of a run does, ignorant of any algorithm."""
