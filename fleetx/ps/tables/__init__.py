"""What servers store: rows and parameters, the rules that update them, and their files."""
