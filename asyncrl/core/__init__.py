"""Numbers only: rollouts, returns, losses, updates, schedules and exploration."""
