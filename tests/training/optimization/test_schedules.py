import keras
import numpy as np
import pytest

from kbert.training.optimization.schedules import WarmupDecay, fine_tuning_schedule
from kbert.training.optimization.settings import JOINS, default_warmup

RISING = [join for join in JOINS if join != "constant"]


def rates(schedule, steps) -> list[float]:
    return [float(schedule(step)) for step in steps]


def test_berts_formula():
    """google-research/bert optimization.py: the decay counts from step 0, so the rate jumps."""
    total, warmup, peak = 50, 10, 1e-4

    def bert(step):
        decayed = peak * (1 - min(step, total) / total)
        return peak * step / warmup if step < warmup else decayed

    steps = range(60)
    found = rates(WarmupDecay(peak, total, warmup), steps)
    assert found == pytest.approx([bert(s) for s in steps], rel=1e-5, abs=1e-12)
    assert found[10] == pytest.approx(peak * (1 - 10 / 50))  # not the peak


def test_electras_formula():
    """google-research/electra model/optimization.py: the decay is multiplied by the rise."""
    total, warmup, peak = 50, 10, 5e-4
    steps = range(60)
    expected = [peak * (1 - min(s, total) / total) * min(1, s / warmup) for s in steps]
    found = rates(WarmupDecay(peak, total, warmup, join="product"), steps)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_fairseqs_formula():
    """fairseq polynomial_decay_schedule.py: the peak is reached, and the decay begins there."""
    total, warmup, peak = 50, 10, 5e-4

    def fairseq(step):
        if step <= warmup:
            return peak * step / warmup
        return peak * (1 - (min(step, total) - warmup) / (total - warmup))

    steps = range(60)
    found = rates(WarmupDecay(peak, total, warmup, join="after"), steps)
    assert found == pytest.approx([fairseq(s) for s in steps], rel=1e-5, abs=1e-12)
    assert found[10] == pytest.approx(peak)


def test_slanted_triangle():
    """Howard & Ruder 2018, equation 3, at every step."""
    total, peak, cut_frac, ratio = 200, 4e-3, 0.1, 32
    cut = int(total * cut_frac)

    def paper(step):
        p = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / cut_frac - 1))
        return peak * (1 + p * (ratio - 1)) / ratio

    steps = range(total + 1)
    found = rates(fine_tuning_schedule(peak, total, cut_frac, "slanted_triangular"), steps)
    assert found == pytest.approx([paper(s) for s in steps], rel=1e-5)
    # Of a length that has no whole step at its tenth, the paper's formula would end below 0.
    found = rates(fine_tuning_schedule(peak, 19, cut_frac, "slanted_triangular"), (0, 2, 19, 30))
    assert found == pytest.approx([peak / ratio, peak, peak / ratio, peak / ratio])
    with pytest.raises(ValueError, match=r"`join` must be 'after'. Received: join='switch'"):
        WarmupDecay(peak, total, cut, "slanted_triangular")


def test_warm_up_stable_decay():
    """Hägele et al. 2024, equation 1 with 1 - sqrt: the peak until the last share of the run."""
    total, warmup, peak, begin = 100, 10, 1e-3, 60

    def paper(step):
        if step < warmup:
            return peak * step / warmup
        over = (min(step, total) - begin) / (total - begin)
        return peak * (1 - np.sqrt(over)) if step > begin else peak

    for join in RISING:
        schedule = WarmupDecay(peak, total, warmup, "wsd", join=join, decay_share=0.4)
        expected = [paper(s) for s in range(120)]
        assert rates(schedule, range(120)) == pytest.approx(expected, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("join", RISING)
def test_the_transformers_formula(join):
    """Vaswani et al. 2017, section 5.3; as in tensor2tensor, the first update's step is 0."""
    width, warmup = 512, 40
    steps = [*range(1, 60), *range(60, 400, 10)]
    paper = [width**-0.5 * min(s**-0.5, s * warmup**-1.5) for s in steps]
    peak = width**-0.5 * warmup**-0.5
    schedule = WarmupDecay(peak, 200, warmup, "inverse_sqrt", join=join)
    assert rates(schedule, steps) == pytest.approx(paper, rel=1e-5)
    assert float(schedule(0)) == 0
    assert float(schedule(warmup)) == pytest.approx(peak) == max(paper)


def test_t5s_formula():
    """Raffel et al. 2020, section 3.1.2: 1 / sqrt(max(n, k)), without a rise."""
    warmup, steps = 40, [0, 1, 39, 40, 41, 100, 399]
    schedule = WarmupDecay(warmup**-0.5, 200, warmup, "inverse_sqrt", join="constant")
    assert rates(schedule, steps) == pytest.approx([max(n, warmup) ** -0.5 for n in steps])
    linear = WarmupDecay(1.0, 50, 10, join="constant")
    assert rates(linear, [0, 10, 30, 50]) == pytest.approx([1, 1, 0.5, 0])


def test_a_run_that_is_all_warm_up():
    for join in RISING:
        found = rates(WarmupDecay(1.0, 4, 4, "constant", join=join), range(4))
        assert found == [0, 0.25, 0.5, 0.75]


def test_shapes_of_the_decay():
    steps = [0, 25, 50, 100]
    assert rates(WarmupDecay(2.0, 100), steps) == pytest.approx([2, 1.5, 1, 0])
    assert rates(WarmupDecay(2.0, 100, decay="constant"), steps) == [2, 2, 2, 2]
    cosine = [1 + np.cos(np.pi * s / 100) for s in steps]
    assert rates(WarmupDecay(2.0, 100, decay="cosine"), steps) == pytest.approx(cosine, abs=1e-6)
    squares = [2, 1.125, 0.5, 0]
    found = rates(WarmupDecay(2.0, 100, decay="polynomial", power=2.0), steps)
    assert found == pytest.approx(squares)


def test_a_million_steps_do_not_lose_the_last():
    schedule = WarmupDecay(1e-4, 1_000_000, 10_000)
    assert float(schedule(999_999)) == pytest.approx(1e-10, rel=0.1)
    assert float(schedule(1_000_000)) == 0


def test_config_round_trip():
    schedule = WarmupDecay(0.1, 10, 2, "polynomial", 2.0, "after")
    config = keras.optimizers.schedules.serialize(schedule)
    again = keras.optimizers.schedules.deserialize(config)
    assert again.get_config() == schedule.get_config()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.1, 10, 2, "stairs"), "`decay` must be one of .*Received: 'stairs'"),
        ((-0.1, 10), "`learning_rate` must be above 0 and finite. Received: -0.1"),
        ((0.1, 10, 0, "polynomial", 0.0), "`power` must be above 0 and finite. Received: 0.0"),
        ((0.1, 10, 11), "0 <= warmup_steps <= total_steps.*warmup_steps=11"),
        ((0.1, 0), "total_steps >= 1.*total_steps=0"),
        ((0.1, 10, 0, "linear", 2.0), "`power` requires decay='polynomial'"),
        ((0.1, 10, 0, "inverse_sqrt"), "`warmup_steps` must be at least 1.*warmup_steps=0"),
        ((0.1, 10, 0, "wsd", 1.0, "after", 0.0), "`decay_share` must be above 0.*: 0.0"),
        ((0.1, 10, 0, "linear", 1.0, "after", 0.5), "`decay_share` requires decay='wsd'.*0.5"),
        ((0.1, 10, 0, "linear", 1.0, "knot"), "`join` must be one of .*Received: 'knot'"),
    ],
)
def test_wrong_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        WarmupDecay(*arguments)


def test_warmup_is_a_recipe_s_or_a_tenth_of_the_run():
    assert [default_warmup(n, most=3_125) for n in (1_000, 125_000)] == [100, 3_125]


def test_warmup_is_berts_or_a_tenth_of_the_run():
    assert [default_warmup(n) for n in (5, 99_990, 100_000, 1_000_000)] == [
        0,
        9_999,
        10_000,
        10_000,
    ]


def test_fine_tuning_rises_and_falls_as_in_transformers():
    """`get_linear_schedule_with_warmup`: the decay begins at the peak."""
    found = rates(fine_tuning_schedule(3e-5, 40, warmup_share=0.1), range(41))
    expected = [3e-5 * (s / 4 if s < 4 else (40 - s) / 36) for s in range(41)]
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-12)
    with pytest.raises(ValueError, match=r"from 0 to 1. Received: 10"):
        fine_tuning_schedule(3e-5, 40, warmup_share=10)
