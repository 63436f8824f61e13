"""The tokenizer in JavaScript gives kbert's ids, whatever the text; Node runs it."""

import json
import shutil
import subprocess
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings, strategies as st

import kbert
from kbert.serve.demo.assets import page_files
from kbert.serve.demo.site import tokenizer_data
from kbert.tokenizers import SPECIAL_TOKENS
from kbert.tokenizers.normalization import normalize
from tests.waiting import PATIENCE

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(shutil.which("node") is None, reason="needs node on the path"),
]
PROGRAM = """
import {createInterface} from "node:readline";
import {WordPiece} from "./wordpiece.mjs";
let tokenizer;
for await (const line of createInterface({input: process.stdin})) {
  const {data, texts} = JSON.parse(line);
  if (data) tokenizer = new WordPiece(data);
  console.log(JSON.stringify(texts.map(text => tokenizer.encode(text))));
}
"""
KINDS = {
    "uncased": {},
    "cased": {"lowercase": False},
    "accents kept": {"strip_accents": False},
    "cased without accents": {"lowercase": False, "strip_accents": True},
    "Chinese words": {"split_chinese": False},
}
HARD = [
    "",
    " \t\n\r\u00a0\u3000\u2028\u2029\u0085",
    "ΣΑΣ Σ ΑΣ. ΑΣΑ ΌΣΟΣ ΣΣ Α\u0301Σ Α\u200bΣ\u200b Σ\u0301Α ʰΣ 1Σ",
    "İstanbul I ı ß ẞ ŉ ﬁ Ǆ ǅ \u0130\u0307",
    "한국어 각 \u1100\u1161\u11a8 パーティー ﾊﾟ 東京タワー 𠀀𪚥 \u4e00\u9fff",
    "a\u0000b c\ufffdd e\u00adf g\u200dh \ufeffi \U000e0001j",
    "it's 50%-off: $3.00 (don't!) «quoted» ¿no? —dash…",
    "नमस्ते ไทย עברית العربية \u0e33 \u0ddd",
    "👩‍👩‍👧 🏳️‍🌈 \U0001f600 \U0010ffff \ue000 \U00030000",
    "x" * 200 + " " + "y" * 201 + " " + "é" * 200 + " " + "e\u0301" * 201,
    "##ing ## # [MASK] [CLS] [UNK]",
]


class Node:
    """A process that encodes, line by line."""

    def __init__(self, folder: Path) -> None:
        (folder / "wordpiece.mjs").write_text(page_files("browser")["wordpiece.js"], "utf-8")
        (folder / "program.mjs").write_text(PROGRAM, "utf-8")
        command = ["node", str(folder / "program.mjs")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def encode(self, texts, tokenizer=None):
        data = None if tokenizer is None else tokenizer_data(tokenizer)
        self._process.stdin.write(json.dumps({"data": data, "texts": texts}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        assert self._process.wait(PATIENCE) == 0
        self._process.stdout.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    node = Node(tmp_path_factory.mktemp("node"))
    yield node
    node.close()


def random_texts(count: int, seed: int) -> list[str]:
    """Texts of one script or several: words of Unicode's assigned characters, mostly near ones."""
    rng = np.random.default_rng(seed)
    known = [c for c in map(chr, range(1, 0x30000)) if unicodedata.category(c)[0] != "C"]
    known += [chr(c) for c in (*range(0xE0000, 0xE0200), *range(0xAD, 0xAE), *range(1, 0xA0))]
    known = np.array([c for c in known if not 0xD800 <= ord(c) < 0xE000])
    texts = []
    for _ in range(count):
        # A stretch of the table, and single characters from anywhere.
        first = rng.integers(len(known))
        stretch = known[first : first + int(rng.choice([8, 64, 512]))]
        near = rng.choice(stretch, rng.integers(1, 24))
        far = rng.choice(known, rng.integers(0, 4))
        spaces = [" "] * int(rng.integers(0, 5))
        characters = np.concatenate([near, far, np.array(spaces, near.dtype)])
        rng.shuffle(characters)
        texts.append("".join(characters))
    return texts


def tokenizer_of(texts: list[str], **options) -> kbert.WordPieceTokenizer:
    """One whose pieces are the characters of texts, so that ids tell what became of each."""
    bare = kbert.WordPieceTokenizer([*SPECIAL_TOKENS, "a"], **options)
    lowercase, strip = bare.lowercase, bare.strip_accents
    found = normalize(tf.constant(texts), lowercase=lowercase, strip_accents=strip).numpy()
    characters = sorted({c for text in found.tolist() for c in text.decode() if not c.isspace()})
    # Some are left out: their words are unknown.
    kept = [c for place, c in enumerate(characters) if place % 40]
    pairs = sorted({text.decode()[i : i + 2] for text in found.tolist() for i in (0, 1)})
    pairs = [pair for pair in pairs if len(pair) == 2 and pair.isalpha()][::3]
    pieces = [*kept, *(f"##{c}" for c in kept), *pairs, *(f"##{pair}" for pair in pairs)]
    return kbert.WordPieceTokenizer(list(dict.fromkeys([*SPECIAL_TOKENS, *pieces])), **options)


def differing(texts, found, wanted):
    return [(t, f, w) for t, f, w in zip(texts, found, wanted, strict=True) if f != w]


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] * (k != "uncased")) for k in KINDS]
)
def test_ten_thousand_strings(kind, node):
    texts = [*HARD, *random_texts(10_000, seed=list(KINDS).index(kind))]
    tokenizer = tokenizer_of(texts, **KINDS[kind])
    wanted = tokenizer.encode(texts).to_list()
    assert sum(map(len, wanted)) > 100_000
    assert 0.01 < np.mean(np.concatenate(wanted) == tokenizer.unk_id) < 0.5
    assert differing(texts, node.encode(texts, tokenizer), wanted)[:5] == []


@pytest.fixture(scope="module")
def words(node, tiny_vocabulary):
    """A tokenizer of words, which Node has too."""
    tokenizer = kbert.WordPieceTokenizer(
        [*tiny_vocabulary, *"éßσς東京漢", *(f"##{c}" for c in "éßσς\u0301")], strip_accents=False
    )
    node.encode([], tokenizer)
    return tokenizer


LIKELY = st.sampled_from(
    ["the", "fox", "FOX", "less", "ing", " ", "'", "Σ", "σ", "É", "e\u0301", "\u200b", "東", "\n"]
)


@given(st.lists(st.lists(LIKELY | st.text(max_size=3), max_size=12).map("".join), min_size=1))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_text(node, words, texts):
    assert differing(texts, node.encode(texts), words.encode(texts).to_list()) == []


def test_halves_of_characters_are_dropped(node, words):
    """A browser's texts may hold such; UTF-8 has none."""
    (wanted,) = words.encode(["the fox"]).to_list()
    assert node.encode(["the \ud83dfo\udc00x\ude00"]) == [wanted]


def test_a_difference_would_be_seen(node, words):
    """What tells the kinds apart above: another rule gives other ids."""
    other = kbert.WordPieceTokenizer(list(words.vocabulary), strip_accents=True)
    wanted = other.encode(["É"]).to_list()
    assert differing(["É"], node.encode(["É"]), wanted)
