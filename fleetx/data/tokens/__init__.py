"""Texts as lines of numbers, in batches of about as many tokens each."""
