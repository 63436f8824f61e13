"""The random numbers: the published generator's, well distributed, a function of four numbers."""

import numpy as np
from keras import ops

from kbert.decoding.noise import gumbel, threefry


def test_the_bits_are_threefrys():
    from jax.extend.random import threefry_2x32  # an implementation of the same paper

    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (20, 4), dtype=np.uint32)
    for key_x, key_y, x, y in words:
        ours = threefry(
            tuple(ops.convert_to_tensor(w) for w in (key_x, key_y)),
            tuple(ops.convert_to_tensor(w) for w in (x, y)),
        )
        theirs = threefry_2x32(np.array([key_x, key_y]), np.array([x, y]))
        assert [int(word) for word in ours] == [int(word) for word in theirs]


def test_the_vectors_of_the_authors():
    """`kat_vectors` of Random123, threefry2x32 with 20 rounds."""
    ones = ops.convert_to_tensor(np.uint32(0xFFFFFFFF))
    found = threefry((ones, ones), (ones, ones))
    assert [int(word) for word in found] == [0x1CB996FC, 0xBB002BE7]


def test_draws_are_gumbels():
    from scipy import stats

    draws = ops.convert_to_numpy(gumbel(5, np.arange(50), 3, np.arange(2000)[None]))
    assert draws.shape == (50, 2000)
    assert draws.dtype == np.float32
    assert np.isfinite(draws).all()
    assert stats.kstest(draws.ravel(), stats.gumbel_r.cdf).pvalue > 0.01
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.02


def test_a_draw_is_a_function_of_seed_row_step_and_token():
    def draw(seed=1, row=2, step=3, token=4):
        return float(ops.convert_to_numpy(gumbel(seed, [row], step, [[token]]))[0, 0])

    first = draw()
    assert draw() == first
    assert len({first, draw(seed=2), draw(row=3), draw(step=4), draw(token=5)}) == 5
    batch = ops.convert_to_numpy(gumbel(1, [7, 2, 9], 3, [[0, 4]]))
    assert batch[1, 1] == np.float32(first)
    assert draw(seed=2**32 - 1) == draw(seed=np.uint32(2**32 - 1)) != draw(seed=2**31 - 1)
