"""Loops over rows on servers that take gradients themselves, past the way that rows know."""

import logging

import pytest
import torch

from tests.habits.test_loops_with_servers import batches, job, loss_of, trained

TOLD = "this update has gradients of dense parameters alone"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if TOLD in r.getMessage()]


def test_rows_that_such_a_loop_leaves_as_they_are_are_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with job(monkeypatch):
        model, optimizer = trained()
        assert told(caplog) == [], "loss.backward() trains rows"
        parameters = [*model.parameters()]
        for batch in batches():
            found = torch.autograd.grad(loss_of(model, *batch), parameters, allow_unused=True)
            for parameter, gradient in zip(parameters, found, strict=True):
                parameter.grad = gradient
            optimizer.step()
            optimizer.zero_grad()
    assert len(told(caplog)) == 1
    assert told(caplog)[0].startswith("rows of item, user ")
