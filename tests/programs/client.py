# What stands in for python: asks the server, beside it, for a fork and behaves like that.
import json
import os
import signal
import socket
import sys

SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "socket")
FORWARDED = ("INT", "TERM", "HUP", "QUIT", "ABRT", "USR1", "USR2", "CONT", "TSTP")
OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)  # nohup and shells ignore them
arguments = sys.argv[1:]
unbuffered = arguments[:1] == ["-u"]
program = arguments[unbuffered:]
if not program or (program[0].startswith("-") and program[0] not in ("-c", "-m")):
    os.execv(sys.executable, [sys.executable, *arguments])


def main() -> int:
    server = socket.socket(socket.AF_UNIX)
    server.connect(SERVER)
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [number for number in files if is_inherited(number) and number != server.fileno()]
    request = {
        "program": program,
        "unbuffered": unbuffered,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "files": files,
        "ignored": [each for each in OF_TERMINALS if signal.getsignal(each) is signal.SIG_IGN],
    }
    text = json.dumps(request).encode()
    socket.send_fds(server, [len(text).to_bytes(8, "big")], files)
    server.sendall(text)
    child = int.from_bytes(server.recv(8), "big")
    with open("/proc/self/comm", "w") as title:
        title.write(str(child))  # for those who look for the process behind this one
    for name in FORWARDED:
        signal.signal(getattr(signal, f"SIG{name}"), lambda number, _: os.kill(child, number))
    return int.from_bytes(server.recv(8), "big", signed=True)


def is_inherited(number: int) -> bool:
    try:
        return number < 3 or os.get_inheritable(number)
    except OSError:
        return False


code = main()
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
