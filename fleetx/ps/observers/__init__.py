"""Processes that look at the servers of a job and are no part of it."""
