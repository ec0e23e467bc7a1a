"""Old scripts of Paddle Fleet on PyTorch: the modules that they import, for one run.

``fleetrun --paddle train.py`` and ``python -m fleetx.compat train.py`` let a script import
``paddle``; ``eval "$(fleetx compat env)"`` does so for the commands of a shell. Nothing else in
fleetx imports this package, and installing fleetx gives nobody a module called ``paddle``.
"""
