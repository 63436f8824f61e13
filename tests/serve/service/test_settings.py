"""The settings of a service: names, folders, what fits together."""

import pytest

from kbert.serve import ServiceOptions


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": []}, "A service requires at least one model. Received: none"),
        ({"model": ["a"]}, "`model` must be NAME=FOLDER, .* Received: 'a'"),
        ({"model": ["a/b=c"]}, "`model` must be NAME=FOLDER, .* Received: 'a/b=c'"),
        ({"model": ["a="]}, "`model` must be NAME=FOLDER, .* Received: 'a='"),
        ({"model": ["a=b", "a=c"]}, "Names of models must be unique. Received: 'a' twice"),
        ({"tls_key": "k"}, "must be given together. Received: tls_certificate=None, tls_key='k'"),
        (
            {"max_texts": 9, "max_waiting": 8},
            "`max_texts` must be at most `max_waiting`, .* Received: ",
        ),
        ({"timeout_seconds": 0}, "`timeout_seconds` must be a number above 0. Received: 0"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        ServiceOptions(**{"model": ["a=b"], **settings})


def test_folders_may_hold_an_equals_sign():
    assert ServiceOptions(model=["a=gs://b/c=d"]).folders() == {"a": "gs://b/c=d"}
