"""What runs the roles of a run: one process for all of them (serial), or a process each (local)."""
