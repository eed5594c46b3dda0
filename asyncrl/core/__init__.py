"""Numbers only: rollouts, returns, losses, updates, schedules, exploration and the shared part of the configuration."""
