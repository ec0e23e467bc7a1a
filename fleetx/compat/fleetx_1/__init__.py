"""FleetX 1: trainers, ready-made static models and data readers of old scripts.

``fleetx`` itself keeps its own names; while a script of old days runs, these are there beside them.
"""
