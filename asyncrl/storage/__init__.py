"""Everything a run leaves on disk: its folder, records, checkpoints and TensorBoard events."""
