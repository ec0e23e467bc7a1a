"""From a program to a module that engine and strategies run like any other."""
