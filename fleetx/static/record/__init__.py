"""Following user code: what torch does with variables becomes the operators of a program."""
