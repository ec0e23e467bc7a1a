"""Pure update rules; no strategy."""
