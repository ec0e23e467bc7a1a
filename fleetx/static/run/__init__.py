"""Running programs: executors, start-up, training, and what is fed and fetched."""
