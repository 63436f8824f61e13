"""Models with byte_fallback, such as DeBERTa-v3's: bytes for what no piece covers."""

import pickle

import pytest
import sentencepiece
import tensorflow as tf
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from kbert.tokenizers import UnigramTokenizer, load_tokenizer
from kbert.tokenizers.unigram.model import BYTE, byte_piece
from tests.tokenizers.unigram.sentencepiece_reference import corpus

TEXTS = [
    "the night",
    "a\u1234b the \u1234\u1235 night\U0001f600",
    "\U0001f600",
    "",
    " \t ",
    "<0x41> a<0x0A>b <unk> [UNK]",
    "No\x00one\x85has \ufffd\u200d a\u0301 \u338f \ufb01",
    "x\x00",
    "ŝűœ — ŝŝŝ  東京\u3000日本",
    *corpus(20, seed=1),
]


@pytest.fixture(scope="module")
def model(deberta_model) -> bytes:
    """As DeBERTa-v3's: the bytes behind the special tokens."""
    proto = ModelProto.FromString(deberta_model)
    pieces = list(proto.pieces)
    del proto.pieces[4:]
    for byte in range(256):
        proto.pieces.add(piece=byte_piece(byte), score=0.0, type=BYTE)
    proto.pieces.extend(pieces[4:])
    proto.trainer_spec.byte_fallback = True
    return proto.SerializeToString()


@pytest.fixture(scope="module")
def tokenizer(model) -> UnigramTokenizer:
    return UnigramTokenizer(model, layout="deberta")


def test_ids_are_those_of_sentencepiece(tokenizer, model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    expected = processor.encode(TEXTS)
    assert any(4 <= number < 260 for number in expected[1])
    assert tokenizer.encode(TEXTS).to_list() == expected
    assert tokenizer.encode_with_offsets(TEXTS)["token_ids"].to_list() == expected
    for text, ids in zip(TEXTS, expected, strict=True):  # without others in the batch
        assert tokenizer.encode(text).numpy().tolist() == ids


def test_bytes_have_the_range_of_their_character(tokenizer):
    out = tokenizer.encode_with_offsets("é\u1234\u1235 \U0001f600night", "character")
    pieces = [tokenizer.vocabulary[i] for i in out["token_ids"].numpy()]
    ranges = list(zip(out["starts"].numpy().tolist(), out["ends"].numpy().tolist(), strict=True))
    of_bytes = [place for piece, place in zip(pieces, ranges, strict=True) if piece[:3] == "<0x"]
    assert of_bytes == [(1, 2)] * 3 + [(2, 3)] * 3 + [(4, 5)] * 4
    assert (0, 1) in ranges
    assert ranges[-1][1] == 10
    words = dict(zip(pieces, out["word_index"].numpy().tolist(), strict=True))
    assert (words["<0x88>"], words["<0xF0>"]) == (0, 1)


def test_all_bytes_of_a_character_but_the_first_continue_it(tokenizer):
    ids = [tokenizer.token_to_id(byte_piece(byte)) for byte in "\u1234".encode()]
    assert tokenizer.continuation[ids].tolist() == [False, True, True]


def test_decode_is_that_of_sentencepiece(tokenizer, model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = tokenizer.encode(TEXTS)
    found = [text.decode().strip() for text in tokenizer.decode(ids).numpy()]
    assert found == [processor.decode(row).strip() for row in ids.to_list()]
    half = [tokenizer.token_to_id(byte_piece(byte)) for byte in "\u1234".encode()[:2]]
    assert set(tokenizer.decode([*half, *tokenizer.encode("the").numpy()])) == {*"\ufffd the"}


def test_a_saved_model_has_nothing_to_track(tokenizer, tmp_path):
    module = tf.Module()
    module.encode = tf.function(
        lambda texts: {k: v.to_tensor() for k, v in tokenizer.encode_with_offsets(texts).items()},
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, str(tmp_path))
    found = tf.saved_model.load(str(tmp_path)).encode(tf.constant(TEXTS))
    for name, value in tokenizer.encode_with_offsets(TEXTS).items():
        assert (found[name] == value.to_tensor()).numpy().all()


def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    for copy in (load_tokenizer(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert copy.encode(TEXTS).to_list() == tokenizer.encode(TEXTS).to_list()
        assert copy.checksum == tokenizer.checksum


def test_errors(model):
    with pytest.raises(ValueError, match=r"without byte_fallback.* pass preparation=False"):
        UnigramTokenizer(model, preparation=True, layout="deberta")
    proto = ModelProto.FromString(model)
    del proto.pieces[4]
    with pytest.raises(ValueError, match=r"each of the 256 bytes.* without <0x00>"):
        UnigramTokenizer(proto.SerializeToString(), layout="deberta")
