"""What a user types: each command reads its words, calls what does the work, and prints."""
