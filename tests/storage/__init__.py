"""What a run leaves on disk is whole, or it is not there."""
