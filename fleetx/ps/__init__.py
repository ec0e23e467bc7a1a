"""Parameter servers: tables, their rules, the wire, servers and clients."""
