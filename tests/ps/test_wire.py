"""The wire under fire: malformed, oversized and unauthorised bytes harm nobody."""

import contextlib
import itertools
import logging
import random
import re
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.server.server import Server
from fleetx.ps.server.strangers import Strangers
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.channel import Access
from fleetx.ps.wire.frames import (
    HEADER,
    MAX_BODY,
    REPLIES,
    REQUESTS,
    SHORT,
    BadFrameError,
    Flag,
    Frame,
    Op,
    body_bytes,
    done,
    unpacked,
)
from fleetx.ps.wire.handshake import Claim, RefusedError, greet
from fleetx.ps.wire.pipes import Pipe
from fleetx.ps.worker.client import Client
from fleetx.roles.secrets import client_tls, job_token, server_tls
from tests.ps.team import TOKEN, Team, push, rows, table, team

SPEC = SparseSpec(name="t", dim=4)
CERTIFICATE = Path(__file__).with_name("certificate.pem")
KEY = Path(__file__).with_name("key.pem")


@given(st.binary(min_size=HEADER.size, max_size=HEADER.size))
def test_random_headers_are_refused_before_anything_is_read(data: bytes) -> None:
    with pytest.raises(BadFrameError):
        unpacked(data, REQUESTS)


@given(
    st.sampled_from(sorted(REQUESTS | REPLIES)),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
)
def test_a_frame_is_what_it_says_or_is_refused(  # noqa: PLR0917
    op: int, number: int, flags: int, seq: int, count: int, width: int, body: int
) -> None:
    frame = Frame(op, number, flags, seq, count, width, 3, 0.5, body)
    allowed = REQUESTS if op in REQUESTS else REPLIES
    expected = body_bytes(frame)
    fits = body == expected if expected is not None else body <= 1 << 20
    short = flags & SHORT
    common = flags & ~Flag.MORE if op == Op.PUSH else flags
    known = common < 128 and short != SHORT and (not short or op in (Op.PULL, Op.PUSH, Op.ROWS))
    if fits and body <= MAX_BODY and known:
        assert unpacked(frame.packed(), allowed) == frame
    else:
        with pytest.raises(BadFrameError):
            unpacked(frame.packed(), allowed)
    with pytest.raises(BadFrameError):
        unpacked(frame.packed(), REPLIES if op in REQUESTS else REQUESTS)


def raw(here: Team) -> socket.socket:
    return socket.create_connection(("127.0.0.1", here.servers[0].server_address[1]), 5)


def inside(here: Team) -> Pipe:
    """A connection that knows the token."""
    pipe = Pipe(raw(here))
    greet(TOKEN, Claim(0, 77), pipe.read_exactly, pipe.send)
    return pipe


def closed(pipe: Pipe) -> bool:
    """Whether the other end hangs up, whatever it says before."""
    pipe.socket.settimeout(60)
    try:
        while pipe.socket.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def works(client: Client, handle: Any) -> None:
    """The table is there, undisturbed, and can be trained."""
    before = rows(client, handle, np.arange(50), train=True)
    push(client, handle, np.arange(50), np.ones((50, 4), np.float32), rate=0.5)
    np.testing.assert_allclose(rows(client, handle, np.arange(50)), before - 0.5, rtol=1e-5)


def test_garbage_from_strangers(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(0)
    with team() as here, caplog.at_level(logging.WARNING):
        client = here.client()
        handle = table(client, SPEC)
        for _ in range(60):
            stranger = raw(here)
            stranger.sendall(chance.randbytes(chance.choice([0, 1, 43, 76, 200, 5000])))
            stranger.close()
        works(client, handle)
        deadline, refused = time.monotonic() + 60, "does not know this job's token"
        # On a busy machine some strangers are still waiting to be heard.
        while refused not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
        while here.servers[0].open_connections > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert here.servers[0].open_connections == 1, "no thread is left behind"
    assert refused in caplog.text


def test_a_stranger_gets_no_answer_but_the_greeting() -> None:
    with team() as here:
        stranger = raw(here)
        stranger.sendall(b"x" * 76)
        said = b""
        while data := stranger.recv(1 << 10):
            said += data
        assert len(said) == 44, "a greeting and a random number"


def test_a_wrong_token_is_refused_on_both_sides() -> None:
    with team() as here:
        impostor = Client(here.endpoints, Access(b"another token", Claim(0, 0), patience=60))
        with pytest.raises(RefusedError, match="same token"):
            impostor.call({"method": "describe"})
        assert len(here.handlers[0]._tables) == 0
    false = socket.create_server(("127.0.0.1", 0))

    def pretend() -> None:
        for _ in range(3):
            caller, _ = false.accept()
            caller.sendall(b"fleetx-ps-1\n" + bytes(32))
            caller.recv(200)
            caller.sendall(bytes(32))
            caller.close()

    thread = threading.Thread(target=pretend, daemon=True)
    thread.start()
    worker = Client(
        [f"127.0.0.1:{false.getsockname()[1]}"], Access(TOKEN, Claim(0, 0), patience=60)
    )
    with pytest.raises(RefusedError, match="does not know this job's token"):
        worker.call({"method": "describe"})
    false.close()


BAD = [
    Frame(Op.PULL, count=10, body=81),
    Frame(Op.PULL, count=2**32 - 1, body=8 * (2**32 - 1)),
    Frame(Op.PUSH, count=3, width=4, body=10**12),
    Frame(Op.PUSH, count=2**31, width=2**31, body=2**33),
    Frame(Op.PULL, table=9, count=0),
    Frame(Op.READ, table=0),
    Frame(Op.WRITE, table=0, count=1, body=4),
    Frame(Op.CALL, body=1 << 21),
    Frame(Op.ROWS, count=0),
    Frame(Op.PULL, flags=128),
    Frame(Op.PULL, flags=SHORT),
    Frame(Op.READ, flags=Flag.FLOAT16),
    Frame(Op.PUSH, flags=Flag.FLOAT16, count=3, width=4, body=3 * (8 + 4 * 4)),
    Frame(Op.CHANGED_IDS, table=9),
    Frame(Op.CHANGED_IDS, flags=Flag.ALL),
    Frame(Op.CHANGED_IDS, body=8),
    Frame(Op.IDS),
    Frame(99),
]


@pytest.mark.parametrize("frame", BAD, ids=str)
def test_a_malformed_frame_closes_its_connection_with_a_reason(
    frame: Frame, caplog: pytest.LogCaptureFixture
) -> None:
    with team() as here, caplog.at_level(logging.WARNING):
        client = here.client()
        handle = table(client, SPEC)
        pipe = inside(here)
        pipe.send(frame.packed(), bytes(min(frame.body, 100)))
        assert closed(pipe)
        works(client, handle)
    assert "closed:" in caplog.text


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b"\xff\xfe", b'{"method": "nonsense"}', b'{"method": "create"}'],
)
def test_a_message_that_is_none_closes_its_connection(text: bytes) -> None:
    with team() as here:
        pipe = inside(here)
        pipe.send(Frame(Op.CALL, body=len(text)).packed(), text)
        assert closed(pipe)
        works(client := here.client(), table(client, SPEC))


def test_random_frames_from_one_that_knows_the_token() -> None:
    chance = random.Random(1)
    with team() as here:
        client = here.client()
        handle = table(client, SPEC)
        for _ in range(80):
            pipe = inside(here)
            head = bytearray(Frame(chance.choice([1, 2, 3, 4, 5]), count=2, body=16).packed())
            for _ in range(chance.randrange(1, 5)):
                head[chance.randrange(4, len(head))] = chance.randrange(256)
            pipe.send(bytes(head), chance.randbytes(64))
            pipe.close()
        works(client, handle)


def test_a_push_to_a_table_of_another_width_is_refused() -> None:
    with team() as here:
        client = here.client()
        handle = table(client, SPEC)
        wrong = type(handle)(handle.name, handle.numbers, 5)
        with pytest.raises(RuntimeError, match="rows of 5 floats were pushed to table 't'"):
            push(client, wrong, [1], np.ones((1, 5), np.float32))
        works(client, handle)


def test_a_client_that_never_reads_and_one_that_never_ends_its_frame() -> None:
    with team() as here:
        client = here.client()
        handle = table(client, SPEC)
        deaf, slow = inside(here), inside(here)
        ids = np.arange(20_000).tobytes()
        deaf.socket.setblocking(False)
        try:
            for _ in range(300):
                deaf.socket.sendall(Frame(Op.PULL, count=20_000, body=len(ids)).packed() + ids)
        except BlockingIOError:
            pass
        slow.send(Frame(Op.PULL, count=100, body=800).packed(), b"half")
        works(client, handle)
        deaf.close()
        slow.close()


def test_a_client_killed_in_the_middle_of_a_push_changes_nothing() -> None:
    code = (
        "import sys, socket; from fleetx.ps.wire.pipes import Pipe;"
        "from fleetx.ps.wire.handshake import *;"
        "from fleetx.ps.wire.frames import *; import os, signal;"
        "pipe = Pipe(socket.create_connection(('127.0.0.1', int(sys.argv[1]))));"
        f"greet({TOKEN!r}, Claim(0, 5), pipe.read_exactly, pipe.send);"
        "pipe.send(Frame(Op.PUSH, 0, 1, 1, 100, 4, body=2400).packed(), bytes(1200));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with team() as here:
        client = here.client()
        handle = table(client, SPEC)
        before = rows(client, handle, np.arange(10), train=True)
        port = str(here.servers[0].server_address[1])
        subprocess.run([sys.executable, "-c", code, port], check=False)
        assert (rows(client, handle, np.arange(10)) == before).all()
        assert client.call({"method": "describe"})["tables"]["t"]["updates"] == 0


def test_a_lost_answer_does_not_repeat_the_push() -> None:
    with team() as here:
        client = here.client()
        handle = table(client, SPEC)
        before = rows(client, handle, [1], train=True)
        channel = client.channels[0]
        whole = channel._answer
        losses = 3

        def lossy(read: Any) -> Frame:
            nonlocal losses
            frame = whole(read)
            if losses:
                losses -= 1
                raise ConnectionError("the answer was lost")
            return frame

        channel._answer = lossy  # type: ignore[method-assign]
        push(client, handle, [1], np.ones((1, 4), np.float32), rate=1.0)
        assert losses == 0
        np.testing.assert_allclose(rows(client, handle, [1]), before - 1, rtol=1e-6)
        assert client.call({"method": "describe"})["tables"]["t"]["updates"] == 1


def test_tables_that_differ_are_refused() -> None:
    with team() as here:
        client = here.client()
        table(client, SPEC)
        assert table(client, SPEC).numbers == (0,)
        with pytest.raises(ValueError, match="table 't' exists already and differs"):
            table(client, SparseSpec(name="t", dim=5))
        with pytest.raises(ValueError, match="cannot be called"):
            client.create("sparse", [SPEC.to_plain() | {"name": "a/b"}], 4)


def _cipher(client: Client) -> Any:
    pipe = client.channels[0]._pipe
    assert pipe is not None
    assert isinstance(pipe.socket, ssl.SSLSocket)
    return pipe.socket.cipher()


def test_tls_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"FLEETX_PS_CERT": str(CERTIFICATE), "FLEETX_PS_KEY": str(KEY)}
    server = Server(("127.0.0.1", 0), RequestHandler(Membership(1)), TOKEN, tls=server_tls(environ))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    endpoint = f"127.0.0.1:{server.server_address[1]}"
    client = Client([endpoint], Access(TOKEN, Claim(0, 0), client_tls(environ), patience=60))
    handle = table(client, SPEC)
    works(client, handle)
    assert re.search("AES_?128.GCM", _cipher(client)[0])
    newest = ssl.create_default_context(cafile=str(CERTIFICATE))
    newest.minimum_version = ssl.TLSVersion.TLSv1_3
    other = Client([endpoint], Access(TOKEN, Claim(0, 0), newest, patience=60))
    works(other, handle)
    assert _cipher(other)[1] == "TLSv1.3"
    other.close()
    monkeypatch.setattr("fleetx.ps.server.server.PLAIN", 0.05)
    plain = Client([endpoint], Access(TOKEN, Claim(0, 0), patience=60))
    with pytest.raises(RefusedError, match=r"the server encrypts .* set FLEETX_PS_CERT"):
        plain.call({"method": "describe"})
    stranger = ssl.create_default_context()
    careful = Client([endpoint], Access(TOKEN, Claim(0, 0), stranger, patience=60))
    with pytest.raises(RefusedError, match=r"CERTIFICATE_VERIFY_FAILED.*FLEETX_PS_CERT"):
        careful.call({"method": "describe"})
    works(client, handle)
    client.call_all({"method": "finish"})
    thread.join(10)
    server.server_close()


def test_a_worker_that_encrypts_is_told_that_the_server_does_not() -> None:
    with team() as here:
        tls = ssl.create_default_context(cafile=str(CERTIFICATE))
        client = Client(here.endpoints, Access(TOKEN, Claim(0, 0), tls, patience=60))
        with pytest.raises(RefusedError, match=r"does not encrypt .*, and this worker does"):
            client.call({"method": "describe"})


def test_strangers_lock_nobody_out() -> None:
    """They come in hundreds and say a byte now and then; workers get in all the same."""
    with team() as here:
        strangers = [raw(here) for _ in range(300)]
        for stranger in strangers:
            stranger.sendall(b"x")
        clients = [here.client() for _ in range(20)]
        for client in clients:
            assert client.call({"method": "heartbeat"}) == {}
        for stranger in strangers:
            with contextlib.suppress(ConnectionError):  # most were hung up on
                stranger.sendall(b"x")
        assert len(here.servers[0].strangers) <= 128
        works(clients[0], table(clients[0], SPEC))
        for client in clients[1:]:
            assert client.call({"method": "heartbeat"}) == {}, "who is in stays in"
        for stranger in strangers:
            stranger.close()


def test_a_greeting_has_a_limit_however_slowly_it_comes() -> None:
    hurried, patient = Strangers(10, 0.0), Strangers(10, 1000.0)
    ours, theirs = socket.socketpair()

    def greeted(strangers: Strangers) -> None:
        with strangers.greeting(ours):
            theirs.sendall(b"x")  # it says something
            begun = time.monotonic()
            while time.monotonic() == begun:
                pass
            strangers.drop_late()
            assert ours.recv(10) == b"x"

    greeted(patient)
    with pytest.raises(ConnectionAbortedError, match="took too long"):
        greeted(hurried)
    assert ours.recv(10) == b"", "whoever waits for more wakes up"
    assert len(patient) == len(hurried) == 0
    for sock in (ours, theirs):
        sock.close()


def test_a_newcomer_takes_the_place_of_the_oldest_stranger() -> None:
    strangers, pairs = Strangers(2, 1000.0), [socket.socketpair() for _ in range(3)]
    with contextlib.ExitStack() as stack:
        for ours, _ in pairs:
            stack.enter_context(contextlib.suppress(ConnectionAbortedError))
            stack.enter_context(strangers.greeting(ours))
        assert len(strangers) == 2
        assert pairs[0][1].recv(1) == b"", "hung up"
        pairs[2][0].sendall(b"x")
        assert pairs[2][1].recv(1) == b"x"
    for sock in itertools.chain.from_iterable(pairs):
        sock.close()


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    local, far = ["127.0.0.1:1", "localhost:2"], ["127.0.0.1:1", "10.0.0.1:2"]
    first = job_token(local, {})
    assert job_token(local, {}) == first
    assert len(first) >= 32
    (path,) = tmp_path.rglob("token")
    assert path.parent.stat().st_mode & 0o077 == 0
    with pytest.raises(
        ValueError, match=r"10\.0\.0\.1:2 can be reached by others.*FLEETX_PS_TOKEN"
    ):
        job_token(far, {})
    secret = "0123456789abcdef"
    assert job_token(far, {"FLEETX_PS_TOKEN": secret}) == secret.encode()
    with pytest.raises(ValueError, match="can be guessed"):
        job_token(far, {"FLEETX_PS_TOKEN": "short"})
    path.parent.chmod(0o777)
    with pytest.raises(ValueError, match="can be changed by others"):
        job_token(local, {})


def test_header_size_is_part_of_the_protocol() -> None:
    assert HEADER.size == 56
    assert struct.calcsize("<I") == 4
    assert (Flag.UNIQUE | Flag.TRAIN | Flag.DELTA | Flag.COUNTS | Flag.INITIAL) == 31


def test_replies_to_changes_are_frames_like_others() -> None:
    assert done(7, 9) == Frame(Op.DONE, seq=7, step=9).packed()
