"""What `python -m asyncrl doctor` looks at, each check on the code that a run uses."""
