"""The engine folds a plan over a model and runs it; the facade serves loops that users write."""
