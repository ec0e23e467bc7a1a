"""`strategy.auto`: what a cluster can do, how long plans take on it, and which is the best."""
