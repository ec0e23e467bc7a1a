"""An MPI job in which even ranks serve and odd ranks train; the ports are put to use."""

import json
import socket
import sys

import fleetx.roles as fleet


def serve(me: fleet.Identity) -> None:
    host, port = me.server_endpoints[me.index].split(":")
    with socket.create_server((host, int(port))) as listener:
        for _ in range(me.worker_num):
            listener.accept()[0].close()


def train(me: fleet.Identity) -> int:
    for endpoint in me.server_endpoints:
        host, port = endpoint.split(":")
        for _ in range(200):
            try:
                socket.create_connection((host, int(port))).close()
                break
            except ConnectionRefusedError:
                pass
    fleet.barrier_worker()
    return int(fleet.all_reduce(me.index + 1))


def main() -> None:
    me = fleet.start(fleet.MPISymetricRoleMaker())
    assert fleet.start() is me, "detection finds the same pairs"
    total = 0
    if fleet.is_worker():
        total = train(me)
    if fleet.is_server():
        serve(me)
    report = {
        "role": me.noun,
        "index": me.index,
        "total": total,
        "endpoints": [*me.server_endpoints, *me.worker_endpoints],
        "local": [me.local_rank, me.local_size, me.node_num],
    }
    sys.stdout.write("report " + json.dumps(report) + "\n")


main()
