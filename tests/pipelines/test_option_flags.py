"""Flags that are made of the fields of settings: type, default, range, what is read from them."""

from collections.abc import Mapping

import pytest
from absl import flags
from absl.testing import flagsaver

from kbert.core.options import Options, option
from pipelines import option_flags


class Baking(Options):
    """How bread is baked."""

    degrees: int = option(200, help="Of the oven.", at_least=1, by_task=True)
    share: float = option(0.5, help="Of whole grain.", above=0, at_most=1)
    form: str | None = option(None, help="Of the loaf.", choices=("round", "long"))
    seeds: tuple[str, ...] = option((), help="On top.")
    also: tuple[str, ...] = option((), help="In it.", repeated=True)
    minutes: tuple[int, ...] = option((30, 40), help="To try.")
    times: tuple[float, float] | None = option(None, help="Of both rises.", at_least=0)
    fan: bool = option(True, help="Whether air moves.")
    flours: Mapping[str, float] | str | None = option(None, help="Name -> share.")
    secret: int = option(3, help="Of the notebook alone.", flag=False)


@pytest.fixture
def parse():
    def parse(*given, **defaults):
        option_flags.define(Baking, **defaults)
        flags.FLAGS(["bake", *given])
        return flags.FLAGS

    with flagsaver.flagsaver():
        yield parse


def test_nothing_given_is_the_default(parse):
    options = parse(form="long")
    assert option_flags.given(Baking, options) == {}
    assert (options.degrees, options.form, options.minutes) == (None, "long", ["30", "40"])
    assert "secret" not in options
    assert options["degrees"].help == "Of the oven. Default: 200."
    options.degrees = 180
    assert option_flags.read(Baking, options) == Baking(degrees=180, form="long")


def test_what_is_given_is_read_as_the_field_holds_it(parse):
    options = parse(
        "--degrees=180", "--share=1", "--seeds=poppy,flax", "--also=a,b", "--also=c", "--nofan",
        "--minutes=5,6", "--times=1,2.5", "--flours=rye=0.5,oat=x=2",
    )  # fmt: skip
    given = option_flags.given(Baking, options)
    made = Baking(**given)
    assert (made.degrees, made.share, made.fan) == (180, 1.0, False)
    assert (made.seeds, made.also) == (("poppy", "flax"), ("a,b", "c"))
    assert (made.minutes, made.times) == ((5, 6), (1.0, 2.5))
    assert made.flours == {"rye": 0.5, "oat=x": 2.0}
    assert "form" not in given


def test_weights_by_name_or_a_word(parse):
    assert option_flags.given(Baking, parse("--flours=balanced")) == {"flours": "balanced"}


def test_a_flag_that_is_there_stays(parse):
    flags.DEFINE_integer("degrees", 7, "Another one.")
    assert parse().degrees == 7


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--degrees=0", "degrees=0"),
        ("--share=0", r"`share` must be a number above 0 and at most 1. Received: 0.0"),
        ("--form=flat", "<round|long>"),
    ],
)
def test_a_value_out_of_range_is_told_by_the_parser(parse, flag, message):
    with pytest.raises(flags.IllegalFlagValueError, match=message.replace("|", r"\|")):
        parse(flag)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            "--minutes=5,x",
            r"--minutes must be numbers, separated by commas. Received: --minutes=5,x",
        ),
        ("--times=a", r"--times must be numbers, separated by commas. Received: --times=a"),
        (
            "--flours=rye",
            r"--flours must be label=weight, .*or balanced. Received: --flours=rye",
        ),
    ],
)
def test_items_that_are_none(parse, flag, message):
    with pytest.raises(ValueError, match=message):
        option_flags.given(Baking, parse(flag))
