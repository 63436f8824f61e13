"""WordTokenizer: ids, ranges, decoding, graphs, files of bilm-tf."""

import json
import pickle
import re
import textwrap

import hypothesis.strategies as st
import pytest
import tensorflow as tf
from hypothesis import given, settings

from kbert.tokenizers import WordTokenizer, load_tokenizer
from tests.processes import run_code

VOCABULARY = ["</S>", "<S>", "<UNK>", "the", "The", "sun", "café", "東京", ".", "\u200b"]
TOKENIZER = WordTokenizer(VOCABULARY)
WORDS = st.sampled_from([*VOCABULARY, "moon", "THE", "sun.", "\0"])
SPACES = st.sampled_from([" ", "  ", "\t", "\n", "\u3000", "\u00a0 "])


def looked_up(text: str) -> list[int]:
    """The rule of bilm-tf in words of its own."""
    return [VOCABULARY.index(w) if w in VOCABULARY else 2 for w in text.split()]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(WORDS | SPACES, max_size=12).map("".join), max_size=4))
def test_ids_and_ranges(texts):
    assert TOKENIZER.encode(texts).to_list() == [looked_up(text) for text in texts]
    for unit in ("byte", "character"):
        out = TOKENIZER.encode_with_offsets(texts, unit)
        assert out["token_ids"].to_list() == [looked_up(text) for text in texts]
        for text, starts, ends, index in zip(
            texts, *(out[n].to_list() for n in ("starts", "ends", "word_index")), strict=True
        ):
            data = text.encode() if unit == "byte" else text
            words = [word.encode() if unit == "byte" else word for word in text.split()]
            assert [data[start:end] for start, end in zip(starts, ends, strict=True)] == words
            assert index == list(range(len(words)))


def test_the_parts_that_special_words_play():
    t = TOKENIZER
    assert (t.sep_id, t.cls_id, t.unk_id, t.pad_id, t.mask_id) == (0, 1, 2, None, None)
    assert t.special_ids == [0, 1, 2]
    assert t.vocabulary_size == len(VOCABULARY)
    assert not t.continuation.any()
    assert t.resources
    other = WordTokenizer(["the", "<UNK>", "<S>", "</S>"])
    assert (other.sep_id, other.cls_id, other.unk_id) == (3, 2, 1)
    assert other.encode("the red <S>").numpy().tolist() == [0, 1, 2]


def test_bytes_that_are_no_utf8_are_dropped():
    out = TOKENIZER.encode_with_offsets([b"s\xffun caf\xc3\xa9 \xe6\x9d", b"the"])
    assert out["token_ids"].to_list() == [[5, 6], [3]]
    assert (out["starts"].to_list(), out["ends"].to_list()) == ([[0, 5], [0]], [[4, 10], [3]])


def test_words_that_are_split_already():
    assert TOKENIZER.encode_words(["the", "", "the sun"]).to_list() == [[3], [2], [2]]
    assert TOKENIZER.encode_words("東京").numpy().tolist() == [7]


def test_decoding():
    assert TOKENIZER.decode([[1, 4, 5, 2, 8, 0], []]) == ["The sun <UNK> .", ""]
    assert TOKENIZER.decode([1, 3], skip_special_tokens=False) == "<S> the"
    ids = TOKENIZER.encode(["the sun", "café"])
    assert tf.function(TOKENIZER.decode)(ids).numpy().tolist() == [b"the sun", "café".encode()]


def test_eager_graph_and_tf_data_agree():
    texts = ["The sun .", "", "red\u3000sun", "東京 東京"] * 3
    expected = TOKENIZER.encode(texts).to_list()
    graph = tf.function(TOKENIZER.encode, input_signature=[tf.TensorSpec([None], tf.string)])
    assert graph(tf.constant(texts)).to_list() == expected
    # The table of another tokenizer is made while its graph is traced.
    for tokenizer in (TOKENIZER, WordTokenizer(VOCABULARY)):
        data = tf.data.Dataset.from_tensor_slices(texts).batch(5).map(tokenizer.encode)
        assert [row for batch in data for row in batch.to_list()] == expected


@pytest.mark.tensorflow
@pytest.mark.slow
def test_saved_model_by_the_session_loader(tmp_path):
    """TensorFlow Serving loads by session, which must find the table filled."""
    from kbert.export import export_saved_model
    from kbert.signatures import Signature

    signature = Signature(
        lambda texts: {"ids": TOKENIZER.encode(texts).to_tensor(-1)},
        [tf.TensorSpec([None], tf.string, name="texts")],
    )
    path = export_saved_model(tmp_path, {"ids": signature}, resources=TOKENIZER.resources)
    program = f"""
        import tensorflow as tf, tensorflow_text
        with tf.compat.v1.Session(graph=tf.Graph()) as session:
            model = tf.compat.v1.saved_model.loader.load(session, ["serve"], {path!r})
            signature = model.signature_def["ids"]
            feed, fetch = signature.inputs["texts"].name, signature.outputs["ids"].name
            print(session.run(fetch, {{feed: ["the 東京 moon", "."]}}).tolist())
    """
    out = run_code(textwrap.dedent(program))
    assert out.strip() == "[[3, 7, 2], [8, -1, -1]]"


def test_save_load_and_pickle(tmp_path):
    TOKENIZER.save(tmp_path / "model")
    assert (tmp_path / "model" / "words.txt").read_bytes() == (
        "".join(f"{word}\n" for word in VOCABULARY).encode()
    )
    config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "WordTokenizer"
    assert config["unk_token"] == "<UNK>"
    for copy in (load_tokenizer(tmp_path / "model"), pickle.loads(pickle.dumps(TOKENIZER))):
        assert copy.kind == "words"
        assert copy.get_config() == TOKENIZER.get_config()
        assert copy.checksum == TOKENIZER.checksum
        assert copy.encode("the moon").numpy().tolist() == [3, 2]


@pytest.mark.parametrize("name", ["vocab.txt", "vocab-2016-09-10.txt"])
def test_bilm_folders_and_files(tmp_path, name):
    (tmp_path / "options.json").write_text("{}")
    lines = ["<S>", "</S>", "<UNK>", "!!!MAXTERMID", "the ", "two words\r", "sun"]
    (tmp_path / name).write_bytes("\n".join(lines).encode())
    for tokenizer in (load_tokenizer(tmp_path), WordTokenizer(tmp_path / name)):
        assert tokenizer.vocabulary == ["<S>", "</S>", "<UNK>", "the", "two words", "sun"]
        assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id) == (0, 1, 2)
    (tmp_path / "vocab-2.txt").write_text("")
    with pytest.raises(ValueError, match=r"must be one vocabulary next to .*. Received: vocab"):
        load_tokenizer(tmp_path)


BROKEN = {
    "the\n\nsun": "must not contain empty words. Received: {path}, line 5 is empty",
    "the\n!!!MAXTERMID\nsun\nthe": "unique. Received: 'the' at {path}, line 4 and again at {path}, "
    "line 7",
    "the\nsu\xff": "must be UTF-8. Received: {path}, line 5: invalid start byte",
}


@pytest.mark.parametrize("content", BROKEN, ids=["empty", "twice", "no utf-8"])
def test_broken_files_name_the_line(tmp_path, content):
    path = tmp_path / "words.txt"
    path.write_bytes(b"</S>\n<S>\n<UNK>\n" + content.encode("latin-1"))
    with pytest.raises(ValueError, match=re.escape(BROKEN[content].format(path=path))):
        WordTokenizer(path)


def test_broken_vocabularies(tmp_path):
    with pytest.raises(ValueError, match="Received: a list of 2 words without <S>, <UNK>"):
        WordTokenizer(["</S>", "the"])
    with pytest.raises(ValueError, match=r"not be !!!MAXTERMID. Received: '!!!MAXTERMID' at entry"):
        WordTokenizer([*VOCABULARY, "!!!MAXTERMID"])
    with pytest.raises(ValueError, match=r"Received: 'a\\nb' at entry 10"):
        WordTokenizer([*VOCABULARY, "a\nb"])
    with pytest.raises(TypeError, match=r"a sequence of str. Received: 7 at entry 10"):
        WordTokenizer([*VOCABULARY, 7])
    with pytest.raises(FileNotFoundError, match=r"Received: .*nowhere.txt"):
        WordTokenizer(tmp_path / "nowhere.txt")
