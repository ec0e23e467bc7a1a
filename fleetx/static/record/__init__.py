"""Programs: what a script feeds, records into, differentiates and clones for tests."""
