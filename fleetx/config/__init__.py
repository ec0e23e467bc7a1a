"""The one object a user fills in, its file format, and the spellings of older releases."""
