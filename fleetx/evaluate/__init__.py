"""Offline evaluation: vectors of a model in a file, and a running service held against them."""
