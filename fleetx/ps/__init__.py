"""Parameter servers: tables of rows and parameters that live outside of the workers.

``wire`` (how bytes travel) knows nothing of the others; ``tables`` (what is stored) knows ``wire``;
``server`` and ``worker`` know both, and not each other; ``observers`` (who looks at a job from
outside) keep their copies in tables of a ``server``. tests/ps/test_ps_layers.py enforces it.
"""
