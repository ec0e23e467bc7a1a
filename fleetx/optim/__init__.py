"""What update rules share: norms, taking updates back; LARS and LAMB by their public names."""
