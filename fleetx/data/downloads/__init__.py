"""Bringing data sets to a machine."""
