"""Settings with metadata: what a field takes, how it is told, what is derived from it."""

import inspect
from collections.abc import Mapping

import numpy as np
import pytest

from kbert.core.options import Options, option, takes


class Baking(Options):
    """How bread is baked.

    Args:
        {options}
    """

    degrees: int = option(200, help="Of the oven.", at_least=1, by_task=True)
    share: float = option(0.5, help="Of whole grain.", at_least=0, at_most=1)
    salt: float | None = option(None, help="Grams. Default: to taste.", above=0)
    form: str = option("round", help="Of the loaf.", choices=("round", "long"))
    seeds: tuple[str, ...] = option((), help="On top.")
    times: tuple[float, float] | None = option(None, help="Of both rises.", at_least=0)
    fan: bool = option(True, help="Whether air moves.", changes_numbers=False)
    flours: Mapping[str, float] | str | None = option(None, help="Name -> share, or 'any'.")

    def check(self):
        if self.form == "long" and self.degrees > 250:
            raise ValueError(f"A long loaf burns. Received: degrees={self.degrees}")


class Rolls(Baking):
    """Small ones."""

    degrees: int = Baking.with_default("degrees", 230)
    count: int = option(help="How many.", at_least=1)


def test_defaults_and_inheritance():
    assert Baking().degrees == 200
    rolls = Rolls(count=4)
    assert (rolls.degrees, rolls.share, rolls.count) == (230, 0.5, 4)
    assert Rolls.names() == [*Baking.names(), "count"]
    assert Rolls.details("degrees") == Baking.details("degrees")
    with pytest.raises(TypeError, match="count"):
        Rolls()
    with pytest.raises(AttributeError):
        rolls.count = 5


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("degrees", 0, "`degrees` must be a whole number of at least 1. Received: 0"),
        ("degrees", 1.5, "`degrees` must be a whole number of at least 1. Received: 1.5"),
        ("degrees", True, "Received: True"),
        ("degrees", "hot", "Received: 'hot'"),
        ("degrees", None, "Received: None"),
        ("share", 1.5, "`share` must be a number from 0 to 1. Received: 1.5"),
        ("share", float("nan"), "Received: nan"),
        ("salt", 0.0, "`salt` must be a number above 0 or None. Received: 0.0"),
        ("salt", float("inf"), "Received: inf"),
        ("form", "flat", "`form` must be one of round, long. Received: 'flat'"),
        ("form", None, "Received: None"),
        ("seeds", 3, "`seeds` must be a sequence, each a string. Received: 3"),
        ("seeds", ["a", 3], "Received: \\['a', 3\\]"),
        ("seeds", {"a": 1}, "Received: {'a': 1}"),
        ("times", (1, 2, 3), "`times` must be a sequence of 2, each a number of at least 0 or"),
        ("times", (1, -2), "Received: \\(1, -2\\)"),
        ("fan", 1, "`fan` must be True or False. Received: 1"),
        ("flours", 3, "`flours` must be a mapping, a string or None. Received: 3"),
    ],
)
def test_what_a_field_does_not_take(field, value, message):
    with pytest.raises(ValueError, match=message):
        Baking(**{field: value})


def test_values_become_plain_python():
    made = Baking(
        degrees=np.int64(7), share=1, seeds="poppy", times=np.ones(2), fan=np.True_,
        flours={"rye": np.float32(0.5)},
    )  # fmt: skip
    kept = (made.degrees, made.share, made.seeds, made.times, made.fan)
    assert kept == (7, 1.0, ("poppy",), (1.0, 1.0), True)
    assert [type(x) for x in kept] == [int, float, tuple, tuple, bool]
    plain = made.to_dict()
    assert (plain["seeds"], plain["times"], plain["flours"]) == (["poppy"], [1, 1], {"rye": 0.5})
    assert type(plain["flours"]["rye"]) is float
    assert Baking.from_dict(plain).to_dict() == plain
    assert Baking(salt=2).salt == 2.0


def test_fields_that_do_not_fit_together():
    with pytest.raises(ValueError, match=r"A long loaf burns. Received: degrees=260"):
        Baking(form="long", degrees=260)
    with pytest.raises(ValueError, match="A long loaf burns"):
        Baking(degrees=260).replace(form="long")


def test_an_unknown_name_lists_the_near_ones():
    with pytest.raises(
        ValueError, match=r"Did you mean: degrees\? Known: degrees, share, .*'degre'"
    ):
        Baking.from_dict({"degre": 3})
    with pytest.raises(TypeError, match=r"bake has no such argument. Did you mean: seeds\?"):
        Baking.from_arguments({"sedes": "poppy"}, "bake")
    with pytest.raises(TypeError, match=r"has no such field.*'oven'"):
        Baking().replace(oven=3)


def test_the_identity_is_what_changes_numbers():
    plain = Baking().identity()
    assert Baking(fan=False).identity() == plain
    assert Baking(share=0.4).identity() != plain
    assert set(plain) == {*Baking.names()} - {"fan"}


def test_help_is_derived():
    text = Baking.describe().splitlines()
    assert text[0] == "degrees: Of the oven. Default: 200."
    assert text[2] == "salt: Grams. Default: to taste."
    assert text[4] == "seeds: On top."
    assert "\n        degrees: Of the oven. Default: 200.\n        share:" in Baking.__doc__
    assert "{options}" not in Baking.__doc__

    @takes(Baking)
    def bake(cake, *, name="x", **settings):
        """Bakes.

        Args:
            cake: what.
            {options}
        """
        return Baking.from_arguments(settings, "bake")

    parameters = inspect.signature(bake).parameters
    assert list(parameters) == ["cake", "name", *Baking.names()]
    assert parameters["share"].default == 0.5
    assert parameters["salt"].annotation == (float | None)
    assert "\n            share: Of whole grain. Default: 0.5.\n" in bake.__doc__
    assert bake("pie", share=0.25).share == 0.25
