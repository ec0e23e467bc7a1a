"""Checks of a strategy on the user's own model: in force, equal where it must be, ranks agree."""
