"""Rows of two bytes a number on the wire: how many bytes, how exact, once each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fleetx.nn import SparseEmbedding
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables.entries import ShowClickEntry
from fleetx.ps.tables.rules import SGD, Adagrad
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.channel import Channel, Request
from fleetx.ps.wire.frames import HEADER, Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.wire.pipes import byte_view
from fleetx.ps.wire.short_floats import SHORT_DTYPES, shortened, widened, width_of
from fleetx.ps.worker.carrier import Carrier
from fleetx.ps.worker.carrier_async import AsyncCarrier, HalfAsyncCarrier
from fleetx.ps.worker.carrier_geo import GeoCarrier
from fleetx.ps.worker.carrier_options import CarrierOptions
from fleetx.ps.worker.client import Client
from fleetx.ps.worker.table_handle import TableHandle
from tests.ps.team import carried, push, rows, team, train

DIM, COUNT = 5, 7
"""Odd, so that nothing lies where it happens to be aligned."""
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
EXACT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest error of a rounding, as a part of the number."""


def rounded(values: np.ndarray, form: str) -> np.ndarray:
    return torch.from_numpy(values).to(DTYPES[form]).float().numpy()


@pytest.mark.parametrize("form", SHORT_DTYPES)
@given(values=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9))
def test_numbers_are_rounded_as_torch_does(form: str, values: list[float]) -> None:
    given = np.array(values, np.float32)
    bits = shortened(given, SHORT_DTYPES[form])
    assert bits.nbytes == width_of(SHORT_DTYPES[form]) * len(given) == 2 * len(given)
    clipped = np.where(np.isinf(given), given, given.clip(-65504, 65504))
    kept = given if form == "bfloat16" else clipped
    np.testing.assert_array_equal(widened(bits, SHORT_DTYPES[form]), rounded(kept, form))


@pytest.mark.parametrize("form", SHORT_DTYPES)
def test_what_is_no_number_stays_none(form: str) -> None:
    odd = np.array([np.nan, -np.nan], np.float32)
    assert np.isnan(widened(shortened(odd, SHORT_DTYPES[form]), SHORT_DTYPES[form])).all()


def short(client: Client, spec: SparseSpec, form: str | None) -> TableHandle:
    flag = SHORT_DTYPES[form] if form else 0
    return client.create("sparse", [spec.to_plain()] * client.servers, spec.dim, short=flag)


@pytest.mark.parametrize("form", [None, *SHORT_DTYPES])
def test_bytes_are_halved_and_the_table_is_not(
    form: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, received = list[int](), list[int]()
    send, answer = Channel.send_all, Channel._answer

    def counted(self: Channel, requests: list[Request]) -> None:
        for frame, rest in requests:
            if frame.op != Op.CALL:  # signs of life, which come when they come
                sent.append(sum(len(byte_view(part)) for part in (frame.packed(), *rest)))
        send(self, requests)

    def heard(self: Channel, read: Any) -> Frame:
        frame = answer(self, read)
        if frame.op != Op.ANSWER:
            received.append(HEADER.size + frame.body)
        return frame

    ids = np.arange(COUNT) * 10**15
    gradients = np.random.default_rng(3).standard_normal((COUNT, DIM)).astype(np.float32)
    with team() as here:
        client = here.client()
        handle = short(client, SparseSpec(name="t", dim=DIM, rule=SGD(1.0)), form)
        logged = here.handlers[0].sparse(Frame(Op.PULL, 0))
        monkeypatch.setattr(Channel, "send_all", counted)
        monkeypatch.setattr(Channel, "_answer", heard)
        shown = rows(client, handle, ids, train=True)
        before, after = np.empty((2, COUNT, DIM), np.float32)
        logged.table.pull(ids, before, train=False)
        push(client, handle, ids, gradients)
        logged.table.pull(ids, after, train=False)
    wide = 2 if form else 4
    assert sent == [HEADER.size + 8 * COUNT, HEADER.size + (8 + wide * DIM) * COUNT]
    assert received == [HEADER.size + wide * DIM * COUNT, HEADER.size]
    moved = rounded(gradients, form) if form else gradients
    np.testing.assert_array_equal(shown, rounded(before, form) if form else before)
    np.testing.assert_array_equal(after, before - moved)  # in float32: no rounding of the row
    assert not form or (shown != before).any()


@pytest.mark.parametrize("form", SHORT_DTYPES)
def test_the_log_keeps_short_rows_and_applies_them_once(form: str, tmp_path: Path) -> None:
    """With shows and clicks behind them, and sent again after a death."""
    spec = SparseSpec(name="t", dim=DIM, rule=Adagrad(0.1), entry=ShowClickEntry())
    message = {"method": "create", "kind": "sparse", "spec": spec.to_plain()}

    def begun(folder: Path | None) -> RequestHandler:
        handler = RequestHandler(Membership(1), folder=folder, patience=60)
        handler.call(Claim(0, 1), message)
        return handler

    calm, dying = begun(None), begun(tmp_path)
    chance = np.random.default_rng(1)
    for seq in range(1, 7):
        ids = np.sort(chance.choice(20, COUNT, replace=False)).astype(np.int64)
        values = chance.standard_normal((COUNT, DIM)).astype(np.float32)
        stats = chance.integers(0, 5, (COUNT, 2)).astype(np.float32)
        parts = [ids, shortened(values, SHORT_DTYPES[form]), stats]
        body = memoryview(b"".join(part.tobytes() for part in parts))
        flags = Flag.UNIQUE | Flag.COUNTS | SHORT_DTYPES[form]
        frame = Frame(Op.PUSH, 0, flags, seq, COUNT, DIM, 0, -1.0, len(body))
        for handler in (calm, dying):
            handler.sparse(frame).change(Claim(0, 9), frame, body)
        dying = RequestHandler(Membership(1), folder=tmp_path, patience=60)
        dying.sparse(frame).change(Claim(0, 9), frame, body)
    ours, theirs = (handler.sparse(Frame(Op.PULL, 0)).table.part(0, 0) for handler in (dying, calm))
    for mine, other in zip(vars(ours).values(), vars(theirs).values(), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert dying.sparse(Frame(Op.PULL, 0)).version == 6
    logs = b"".join(path.read_bytes() for path in tmp_path.rglob("*.log"))
    assert logs.count(body.tobytes()) == 1, "as it came, and once"


class Net(torch.nn.Module):
    def __init__(self, form: str | None) -> None:
        super().__init__()
        self.words = SparseEmbedding(4, name="words", wire=form)
        self.head = torch.nn.Linear(12, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids).flatten(1))


@pytest.mark.parametrize("kind", [Carrier, AsyncCarrier, HalfAsyncCarrier, GeoCarrier])
def test_every_way_of_exchanging_learns_nearly_the_same(kind: Any) -> None:
    def learned(form: str | None) -> torch.Tensor:
        torch.manual_seed(0)
        model = Net(form)
        generator = torch.Generator().manual_seed(5)
        with team(2) as here:
            worker = here.worker()
            carrier = carried(model, worker, kind, carrier_options=CarrierOptions(every=2), lr=0.2)
            for _ in range(8):
                ids = torch.randint(0, 20, (6, 3), generator=generator)
                train(model, carrier, ids, torch.randn(6, generator=generator))
                if kind is AsyncCarrier:
                    carrier.flush()
            carrier.flush()
            tables = [handler.sparse(Frame(Op.PULL, 1)).table for handler in here.handlers]
            found = {i: w for t in tables for i, w in zip(*_rows(t), strict=True)}
            worker.stop()
        return torch.tensor([found[i] for i in sorted(found)])

    exact = learned(None)
    for form in SHORT_DTYPES:
        ours = learned(form)
        assert not torch.equal(ours, exact), "the option is in force"
        # Eight updates, each with a gradient that is off by a rounding or two.
        assert (ours - exact).abs().max() < 4 * EXACT[form] * exact.abs().max()


def _rows(table: Any) -> tuple[list[int], list[list[float]]]:
    found = table.part(0, 0)
    return found.ids.tolist(), found.weights.tolist()


def test_other_forms_and_layers_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="wire='int8' of table 'words' is not known"):
        Net("int8")
    model = Net("float16")
    model.more = SparseEmbedding(4, name="words")
    with team() as here:
        worker = here.worker()
        with pytest.raises(ValueError, match="two layers over table 'words' differ"):
            carried(model, worker, lr=0.1)
        worker.stop()
