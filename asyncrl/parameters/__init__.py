"""Where the parameters live: in memory that all workers share."""
