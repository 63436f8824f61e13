import pytest

from kbert.checkpoints.keys import check_keys

RULES = {
    "fields": ["size", "speed"],
    "defaults": ["speed"],
    "required": {"mode": ("plain", None)},
    "ignored": ["author"],
    "title": "a toy",
    "source": "there",
}


@pytest.mark.parametrize(
    "content",
    [
        {"size": 1},
        {"size": 1, "speed": 2, "author": "x", "mode": None},
        {"size": 1, "mode": "plain"},
    ],
)
def test_what_is_understood_passes(content):
    check_keys(content, **RULES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"size": 1, "mode": "odd"},
            "`mode` must be 'plain' in a config of a toy .*'odd' in there",
        ),
        (
            {"size": 1, "hue": 2, "x": 3},
            "Every key .* supported.*Received: unknown hue, x in there",
        ),
        ({"speed": 1}, "A config of a toy must have size. Received: there"),
    ],
)
def test_what_is_not_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        check_keys(content, **RULES)
