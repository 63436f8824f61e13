"""What is learned from texts does not depend on the process: another one learns the same."""

import hashlib
import json

import pytest

from kbert.tokenizers import train_byte_pair, train_unigram, train_wordpiece, train_words
from tests.processes import run_code
from tests.tokenizers.bpe import test_training as byte_pair
from tests.tokenizers.unigram import sentencepiece_reference as unigram
from tests.tokenizers.wordpiece import test_training as wordpiece
from tests.tokenizers.words import test_training as words


def sha256(model: bytes) -> str:
    return hashlib.sha256(model).hexdigest()


TRAINED = {
    "wordpiece": lambda: train_wordpiece(wordpiece.corpus(), 60),
    "bpe": lambda: train_byte_pair(byte_pair.corpus(), 350),
    "unigram": lambda: sha256(train_unigram(unigram.corpus(), 150, max_sentences=300)),
    "words": lambda: train_words(words.corpus(), 10),
}


@pytest.fixture(scope="module")
def elsewhere() -> dict:
    """All four, of one process with another hash seed and one thread."""
    code = (
        "import json; from tests.tokenizers.test_training import TRAINED;"
        "print(json.dumps({kind: train() for kind, train in TRAINED.items()}))"
    )
    one = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return json.loads(run_code(code, PYTHONHASHSEED="random", **one).splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRAINED)
def test_another_process_learns_the_same(elsewhere, kind):
    assert json.loads(json.dumps(TRAINED[kind]())) == elsewhere[kind]
