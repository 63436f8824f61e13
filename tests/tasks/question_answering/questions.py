"""A toy of question answering: who was where, and when, in texts longer than the encoder takes."""

import numpy as np

ANSWERS = {
    "he": ["king", "queen", "man", "woman"],
    "in": ["house", "river", "tree", "city"],
    "at": ["day", "night", "moon", "sun"],
}
FILLER = "red blue green big small old new one two three".split()


def toy_questions(count, seed=0, longest=40, unanswerable=False):
    """A table's columns: "he ?" asks for the person, "in ?" for the place, "at ?" for the time.

    Args:
        count: questions.
        seed: of the draw.
        longest: words that stand around the answer at most.
        unanswerable: whether a text lacks one of the three, so that some questions have no answer.
    """
    rng = np.random.default_rng(seed)
    names = ("id", "question", "context", "answers", "answer_starts")
    table = {name: [] for name in names}
    for number in range(count):
        there = {kind: rng.choice(words) for kind, words in ANSWERS.items()}
        asked = rng.choice(list(ANSWERS))
        if unanswerable:
            del there[rng.choice(list(there))]
        words = list(rng.choice(FILLER, rng.integers(len(there), longest)))
        for word in there.values():
            words.insert(rng.integers(len(words) + 1), word)
        context = " ".join(words).capitalize() + "."
        answer = there.get(asked)
        start = context.lower().find(answer) if answer else None
        table["id"].append(f"q{number}")
        table["question"].append(f"{asked}?")
        table["context"].append(context)
        table["answers"].append([context[start : start + len(answer)]] if answer else [])
        table["answer_starts"].append([start] if answer else [])
    return table
