"""A server with a log in a folder, on a port; it is killed from outside."""

import sys
from pathlib import Path

from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.server.server import Server
from tests.ps.team import TOKEN

port, folder, log_limit = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
membership = Membership(1, silence=1000.0, grace=1000.0)
handler = RequestHandler(membership, folder=folder, log_limit=log_limit)
Server(("127.0.0.1", port), handler, TOKEN).run()
