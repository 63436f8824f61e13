"""Synthetic corpora with planted neighbours, analogies and stems."""

import numpy as np

KINDS = (["fox", "dog", "cat", "wolf"], ["pen", "ink", "page", "book"])


def topics(count=400, seed=0):
    """Two kinds of sentences that share no word but `the`."""
    rng = np.random.default_rng(seed)
    return [" ".join(["the", *rng.permutation(KINDS[i % 2])[:3]]) for i in range(count)]


def capitals(count=2000, pairs=6, seed=0):
    """Countries and their capitals: a word shares some contexts with its kind, some with its pair.

    The words are `country0`, `capital0` and so on. A fifth of their neighbours are random, because
    GloVe learns nothing of words that never occur together.
    """
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        line = []
        number, kind = rng.integers(pairs), ("country", "capital")[rng.integers(2)]
        for place in range(4):
            is_random = rng.random() < 0.2
            shown = rng.integers(pairs) if is_random else number
            shown_kind = ("country", "capital")[rng.integers(2)] if is_random else kind
            around = f"place{shown}" if place % 2 else f"{shown_kind}like"
            line.append(f"{around}x{rng.integers(4)}")
        line.insert(2, f"{kind}{number}")
        lines.append(" ".join(line))
    return lines


def stems(count=1000, seed=0):
    """Stems with endings: a stem decides the context, an ending means nothing."""
    rng = np.random.default_rng(seed)
    names, endings = ["walk", "jump", "sing", "cook"], ["er", "ing", "ed", "ish"]
    lines = []
    for _ in range(count):
        stem = rng.integers(len(names))
        around = [f"c{stem}{rng.integers(5)}" for _ in range(4)]
        around.insert(2, names[stem] + endings[rng.integers(len(endings))])
        lines.append(" ".join(around))
    return lines
