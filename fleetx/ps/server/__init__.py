"""A parameter server: it answers requests, logs changes, and watches its workers."""
