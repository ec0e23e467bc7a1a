"""Pure tensor mathematics of exchange; no strategy and no process-group management."""
