"""How requests and replies travel: frames, sockets, the handshake and shared memory."""
