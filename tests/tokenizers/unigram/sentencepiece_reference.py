"""The ids of XLNet's and ALBERT's own code, in plain Python on the sentencepiece package."""

import random
import unicodedata

# The trainer learns from different words, so there must be many.
STEMS = "light night house river mount battl walk talk garden winter paint café naïv straß".split()
ENDINGS = ("", "s", "ed", "ing", "er", "ers", "est", "ly", "less", "ness")
WORDS = (
    "the the the the of of and in to for that with don't über Übung 東京 日本語 日本 東 Москва"
    ' москва река реки нация किताब दुनिया दुनि مدينة بيت البيت well-known (see) "quoted" £5 €20'
).split() + [stem + ending for stem in STEMS for ending in ENDINGS]


def corpus(size: int = 800, seed: int = 0) -> list[str]:
    """Lines of words and of numbers before commas."""
    rng = random.Random(seed)
    lines = []
    for _ in range(size):
        words = rng.choices(WORDS, k=10)
        words.insert(rng.randrange(10), f"{rng.randrange(30)}, {rng.randrange(1980, 2020)},")
        lines.append(" ".join(words).capitalize() + ".")
    return lines


def preprocess(text: str, lowercase: bool, keep_accents: bool) -> str:
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    if not keep_accents:
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(sign for sign in decomposed if not unicodedata.combining(sign))
    return text.lower() if lowercase else text


def pieces_of(processor, text: str) -> list[str]:
    """A piece that ends in a digit and a comma is split again without the comma."""
    found = []
    for piece in processor.encode(text, out_type=str):
        if len(piece) < 2 or piece[-1] != "," or not piece[-2].isdigit():
            found.append(piece)
            continue
        parts = processor.encode(piece[:-1].replace("▁", ""), out_type=str)
        if not piece.startswith("▁"):
            parts[0] = parts[0].removeprefix("▁")
        found += [*filter(None, parts), ","]
    return found


def original_ids(processor, text: str, lowercase=True, keep_accents=False) -> list[int]:
    prepared = preprocess(text, lowercase, keep_accents)
    return [processor.piece_to_id(piece) for piece in pieces_of(processor, prepared)]
