"""Settings of decoding: what they hold, and what they refuse."""

import dataclasses
import re

import pytest

from kbert.decoding import Beam, Greedy, Sampling


def test_settings_are_values():
    assert Greedy() == Greedy()
    assert Sampling() == Sampling(temperature=1.0, top_k=None, top_p=None)
    assert Beam() == Beam(4, 0.6, 1, "wu", "never")
    assert Beam(length_penalty=-2, normalisation="length").length_penalty == -2
    assert hash(Beam()) == hash(Beam(4, 0.6, 1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Beam().width = 5


@pytest.mark.parametrize(
    ("method", "fields", "message"),
    [
        (Sampling, {"temperature": 0.0}, "`temperature` must be a number that is positive"),
        (Sampling, {"temperature": -1}, "Received: -1"),
        (Sampling, {"temperature": float("inf")}, "`temperature` must be a number"),
        (Sampling, {"top_k": 0}, "`top_k` must be an integer of at least 1. Received: 0"),
        (Sampling, {"top_k": 2.0}, "`top_k` must be an integer"),
        (Sampling, {"top_p": 0.0}, "`top_p` must be a number that is above 0 and at most 1"),
        (Sampling, {"top_p": 1.01}, "Received: 1.01"),
        (Beam, {"width": 0}, "`width` must be an integer of at least 1. Received: 0"),
        (Beam, {"length_penalty": -0.1}, "`length_penalty` must be a number that is at least 0"),
        (Beam, {"length_penalty": "1", "normalisation": "length"}, "a number that is finite"),
        (Beam, {"normalisation": "power"}, "`normalisation` must be one of wu, length. Received"),
        (Beam, {"early_stopping": "always"}, '`early_stopping` must be True, False or "never". '),
        (Beam, {"early_stopping": 1}, "Received: 1"),
        (Beam, {"num_results": 0}, "`num_results` must be an integer of at least 1"),
        (Beam, {"width": 2, "num_results": 3}, "`num_results` must not exceed `width`. Received: "),
    ],
)
def test_what_is_out_of_range_raises(method, fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        method(**fields)
