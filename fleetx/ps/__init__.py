"""Parameter servers: tables of rows and parameters that live outside of the workers.

``wire`` (how bytes travel) knows nothing of the others; ``tables`` (what is stored) knows ``wire``;
``server`` and ``worker`` know both, and not each other. tests/ps/test_ps_layers.py enforces it.
"""
