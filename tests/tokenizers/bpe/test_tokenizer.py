"""The byte-level BPE tokenizer: special tokens, ranges, decoding, graphs, exports, errors."""

import pickle
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from kbert.tasks.pretraining.fill_mask import encode_with_masks
from kbert.tokenizers import BytePairTokenizer
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from tests.processes import run_code

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MERGES = ["l o", "lo w", "Ġ low", "e r", "low er", "Ġ Ġ"]
VOCABULARY = [*SPECIALS, *CHARACTERS, "lo", "low", "Ġlow", "er", "lower", "ĠĠ"]
VOCABULARY_AND_ADDED = [*VOCABULARY, "  ", "    ", "[unused0]"]


@pytest.fixture(scope="module")
def plain() -> BytePairTokenizer:
    return BytePairTokenizer(VOCABULARY, MERGES)


@pytest.fixture(scope="module")
def keeping() -> BytePairTokenizer:
    return BytePairTokenizer(VOCABULARY, MERGES, special_tokens_in_text=True)


@pytest.fixture(scope="module")
def composing() -> BytePairTokenizer:
    return BytePairTokenizer(
        VOCABULARY_AND_ADDED,
        MERGES,
        special_tokens_in_text=True,
        normalization="nfc",
        added_tokens=["    ", "  ", "[unused0]"],
    )


def pieces(tokenizer, text):
    return " ".join(tokenizer.vocabulary[i] for i in tokenizer.encode(text).numpy())


def test_words_spaces_and_merges(plain):
    assert pieces(plain, "low lower  low") == "low Ġlow er Ġ Ġlow"
    assert pieces(plain, "lower   ") == "lower ĠĠ Ġ"
    assert pieces(plain, "low\n low's") == "low Ċ Ġlow ' s"
    assert pieces(plain, "é\0") == "Ã © Ā"


def test_batches_rows_and_kinds_of_input(plain):
    texts = ["low lower", "", "lower", "low é"]
    together = plain.encode(texts)
    assert together.dtype == tf.int32
    assert together.shape.as_list() == [4, None]
    assert together.to_list() == [plain.encode(text).numpy().tolist() for text in texts]
    assert plain.encode([]).to_list() == []
    assert plain.encode("").shape == [0]
    out = plain.encode_with_offsets([])
    assert [out[key].to_list() for key in ("token_ids", "starts", "word_index")] == [[], [], []]


def test_special_ids_and_continuation(plain):
    t = plain
    assert (t.cls_id, t.pad_id, t.sep_id, t.unk_id, t.mask_id) == (0, 1, 2, 3, 4)
    assert t.special_ids == [0, 1, 2, 3, 4]
    assert t.mask_token == "<mask>"
    assert (t.kind, t.pair_separators, t.resources) == ("bpe", 2, [])
    starts = [p for p, goes_on in zip(VOCABULARY, t.continuation, strict=True) if not goes_on]
    assert starts == [*SPECIALS, "Ġ", "Ġlow", "ĠĠ"]


def test_gpt2_has_one_special_token_for_both_ends_of_a_text():
    tokenizer = BytePairTokenizer([*CHARACTERS, "<|endoftext|>"], [])
    assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id) == (256, 256, 256)
    assert (tokenizer.mask_id, tokenizer.pad_id) == (None, None)
    assert tokenizer.special_ids == [256]
    assert tokenizer.pair_separators == 1
    with pytest.raises(ValueError, match=r"with a mask token.*unk, cls, sep, bos, eos only"):
        encode_with_masks(tokenizer, tf.constant(["a"]))


def test_special_tokens_in_text(plain, keeping):
    text = "low <mask> low<mask> <s>low</s>\0<mask"
    assert pieces(keeping, text) == "low <mask> Ġlow <mask> Ġ <s> low </s> Ā < m a s k"
    assert plain.mask_id not in plain.encode(text).numpy()
    out = keeping.encode_with_offsets([text, "é\t\n<mask>", "low"], "character")
    slices = [
        [text[a:z] for a, z in zip(*row, strict=True)]
        for text, *row in zip(
            [text, "é\t\n<mask>"], *(out[k].to_list()[:2] for k in ("starts", "ends")), strict=True
        )
    ]
    assert slices[0][:6] == ["low", " <mask>", " low", "<mask>", " ", "<s>"]
    assert "".join(slices[0]) == text
    assert slices[1] == ["é", "é", "\t\n<mask>"]
    assert out["word_index"].to_list()[0][:6] == [0, 1, 2, 3, 4, 5]


def test_normalized_text_and_added_tokens(composing):
    assert pieces(composing, "low   low[unused0]") == "low    Ġlow [unused0]"
    assert pieces(composing, "     lower") == "     Ġlow er"
    assert pieces(composing, "e\u0301   <mask>  ") == "Ã © <mask>   "
    whole = ["    ", "[unused0]", "<s>"]
    assert not composing.continuation[[VOCABULARY_AND_ADDED.index(token) for token in whole]].any()
    assert composing.special_ids == [0, 1, 2, 3, 4]
    ids = composing.encode("low    e\u0301[unused0]<s>").numpy()
    assert composing.decode(ids.tolist()) == "low    é[unused0]"


def test_ranges_are_those_of_the_given_bytes(composing):
    """U+0301 is a byte away from its letter, which is no UTF-8, and between are none."""
    out = composing.encode_with_offsets([b"lowe\xff\xcc\x81  r", b"\xff", b"  "])
    names = [[VOCABULARY_AND_ADDED[i] for i in row] for row in out["token_ids"].to_list()]
    assert names == [["low", "Ã", "©", "  ", "r"], [], ["  "]]
    assert out["starts"].to_list() == [[0, 3, 3, 7, 9], [], [0]]
    assert out["ends"].to_list() == [[3, 7, 7, 9, 10], [], [2]]
    assert out["word_index"].to_list() == [[0, 0, 0, 1, 2], [], [0]]


def test_words_with_added_tokens(composing):
    words = ["low", "[unused0]", "  ", "e\u0301", ""]
    names = [[VOCABULARY_AND_ADDED[i] for i in row] for row in composing.encode_words(words)]
    assert names == [["Ġlow"], ["Ġ", "[unused0]"], ["  "], ["Ġ", "Ã", "©"], ["<unk>"]]


def test_an_added_token_that_is_also_a_byte():
    """Hugging Face gives it the byte's id; texts with that byte keep their ranges."""
    tokenizer = BytePairTokenizer(CHARACTERS, [], added_tokens=["é"])
    out = tokenizer.encode_with_offsets("é驩")  # the latter is E9 A9 A9
    assert out["token_ids"].numpy().tolist() == [0xE9, *"驩".encode()]
    assert out["ends"].numpy().tolist() == [2, 3, 4, 5]


def test_tokens_in_whatever_form_or_order(composing):
    config = composing.get_config() | {
        "added_tokens": ["  ", "[unused0]", "    ", "  "],
        "normalized_tokens": ["[unused0]", "    ", "  "],
    }
    assert BytePairTokenizer.from_config(config).checksum == composing.checksum
    other = BytePairTokenizer.from_config(config | {"normalized_tokens": ["  ", "<mask>"]})
    assert other.normalized_tokens == ["<mask>", "  "]
    assert other.checksum != composing.checksum


def test_only_the_mask_takes_space_and_only_if_told():
    keep = {"special_tokens_in_text": True}
    bare = BytePairTokenizer(VOCABULARY, MERGES, mask_takes_space=False, **keep)
    assert pieces(bare, "low <mask>") == "low Ġ <mask>"
    named = BytePairTokenizer(
        [*CHARACTERS, "[MASK]", "[X]", "[X]y"],
        [],
        special_tokens={"mask": "[MASK]"},
        additional_special_tokens=["[X]", "[X]y"],
        **keep,
    )
    assert pieces(named, "a [MASK][X]y [X]") == "a [MASK] [X]y Ġ [X]"
    assert named.special_ids == [256, 257, 258]


def test_masks_of_texts_to_fill(plain, keeping, composing):
    texts = ["low <mask> low", "<mask>", "low", "", "low \t<mask><mask>  "]
    expected = keeping.encode(texts).to_list()
    assert encode_with_masks(plain, tf.constant(texts)).to_list() == expected
    bare = composing.get_config() | {"special_tokens_in_text": False}
    texts += ["low   <mask>  e\u0301 <mask>\u0301", "    <mask>     low"]
    assert (
        encode_with_masks(BytePairTokenizer.from_config(bare), tf.constant(texts)).to_list()
        == composing.encode(texts).to_list()
    )
    prefixed = {"add_prefix_space": True}
    texts = ["low <mask> low<mask>low"]
    assert (
        encode_with_masks(BytePairTokenizer(VOCABULARY, MERGES, **prefixed), texts).to_list()
        == BytePairTokenizer(VOCABULARY, MERGES, special_tokens_in_text=True, **prefixed)
        .encode(texts)
        .to_list()
    )


def test_prefix_space():
    tokenizer = BytePairTokenizer(VOCABULARY, MERGES, add_prefix_space=True)
    assert tokenizer.encode("low").numpy().tolist() == tokenizer.encode(" low").numpy().tolist()
    assert tokenizer.encode(["low", ""]).to_list() == [[VOCABULARY.index("Ġlow")], []]
    assert tokenizer.encode_with_offsets("lower")["ends"].numpy().tolist() == [3, 5]


def test_decode(plain):
    text = "low lower  é💡\n"
    ids = plain.encode(text).numpy().tolist()
    assert plain.decode(ids) == text
    assert plain.decode([[0, *ids, 2, 1, 3], []]) == [text, ""]
    assert plain.decode([0, 4, ids[0]], skip_special_tokens=False) == "<s><mask>low"
    assert tf.function(plain.decode)(plain.encode([text])).numpy().tolist() == [text.encode()]
    with pytest.raises(ValueError, match=r"from 0 to 266. Received: 267"):
        plain.decode([267])


def test_ids_that_spell_no_utf8_decode_as_in_python(plain):
    for data in (b"low\xe4\xbdlow", b"\xff", b"\xf0\x9f\x92", b"\xed\xa0\x80", b"\xc0\xaf"):
        ids = [VOCABULARY.index(CHARACTERS[byte]) for byte in data]
        assert plain.decode(ids) == data.decode("utf-8", "replace")


def test_invalid_bytes_are_dropped_and_ranges_stay(plain):
    out = plain.encode_with_offsets([b"lo\xffw l\xc3ow", b"\xc3", b"low"])
    assert [[VOCABULARY[i] for i in row] for row in out["token_ids"].to_list()] == [
        ["low", "Ġlow"], [], ["low"],
    ]  # fmt: skip
    assert out["starts"].to_list() == [[0, 4], [], [0]]
    assert out["ends"].to_list() == [[4, 9], [], [3]]


@pytest.mark.parametrize("name", ["keeping", "composing"])
def test_inside_tf_data(request, name):
    tokenizer = request.getfixturevalue(name)
    texts = ["low lower", "é <mask>", "", "lower", "e\u0301   low"] * 3
    expected = tokenizer.encode_with_offsets(texts)
    data = tf.data.Dataset.from_tensor_slices(texts).batch(4)
    for _ in range(2):  # each iterator loads the model for itself
        rows = {key: [] for key in expected}
        for batch in data.map(tokenizer.encode_with_offsets, num_parallel_calls=2):
            for key, value in batch.items():
                rows[key] += value.to_list()
        assert rows == {key: value.to_list() for key, value in expected.items()}


def test_two_tokenizers_in_one_graph(plain):
    other = BytePairTokenizer(CHARACTERS, [])
    both = tf.function(lambda texts: (plain.encode(texts), other.encode(texts)))
    first, second = both(tf.constant(["low"]))
    assert first.to_list() == [[VOCABULARY.index("low")]]
    assert second.to_list() == [[ord("l"), ord("o"), ord("w")]]


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("name", ["keeping", "composing"])
def test_saved_model_by_the_session_loader(request, name, tmp_path):
    """TensorFlow Serving loads by session; nothing in the tokenizer may need tracking."""
    import keras

    tokenizer = request.getfixturevalue(name)
    spec = [tf.TensorSpec([None], tf.string, name="texts")]
    archive = keras.export.ExportArchive()
    archive.add_endpoint("ids", lambda texts: tokenizer.encode(texts).to_tensor(), spec)
    archive.add_endpoint(
        "ends", lambda texts: tokenizer.encode_with_offsets(texts)["ends"].to_tensor(), spec
    )
    archive.add_endpoint("back", lambda texts: tokenizer.decode(tokenizer.encode(texts)), spec)
    archive.write_out(tmp_path / "model", verbose=False)
    texts = ["low <mask> lower", "é", "", "e\u0301   low"]
    program = f"""
        import tensorflow as tf, tensorflow_text
        with tf.compat.v1.Session(graph=tf.Graph()) as session:
            model = tf.compat.v1.saved_model.loader.load(
                session, ["serve"], {str(tmp_path / "model")!r})
            for name in ("ids", "ends", "back"):
                signature = model.signature_def[name]
                feed = next(iter(signature.inputs.values())).name
                fetch = next(iter(signature.outputs.values())).name
                print(session.run(fetch, {{feed: {texts!r}}}).tolist())
    """
    out = run_code(textwrap.dedent(program))
    ids, ends, back = map(eval, out.splitlines()[:3])
    assert ids == tokenizer.encode(texts).to_tensor().numpy().tolist()
    assert ends == tokenizer.encode_with_offsets(texts)["ends"].to_tensor().numpy().tolist()
    assert [row[:4] for row in ends[:3]] == [[3, 10, 14, 16], [1, 2, 0, 0], [0, 0, 0, 0]]
    assert back == [b"low lower", "é".encode(), b"", tokenizer.decode(ids[3]).encode()]


def test_config_pickle_and_checksum(keeping, plain):
    for copy in (
        BytePairTokenizer.from_config(keeping.get_config()),
        pickle.loads(pickle.dumps(keeping)),
    ):
        assert copy.get_config() == keeping.get_config()
        assert copy.checksum == keeping.checksum != plain.checksum
        np.testing.assert_array_equal(copy.encode(" <mask>low"), keeping.encode(" <mask>low"))
    assert plain.checksum != BytePairTokenizer(VOCABULARY, MERGES[::-1]).checksum
    # It lies in prepared corpora: arguments that are new do not change it.
    assert plain.checksum[:16] == "dbcd0ff72031c51b"
    assert plain.checksum != BytePairTokenizer(VOCABULARY, MERGES, normalization="nfc").checksum
    assert plain.checksum != BytePairTokenizer(VOCABULARY, MERGES, added_tokens=["er"]).checksum
    assert set(plain.settings) == set(plain.get_config()) - {"vocabulary", "merges"}


def test_vocabulary_and_merges_in_every_form(plain, tmp_path):
    plain.save(tmp_path)
    forms = [
        (dict(zip(VOCABULARY, range(len(VOCABULARY)), strict=True)), [("l", "o")]),
        (VOCABULARY, ["l o"]),
        (tmp_path / "vocab.json", ["l o"]),
    ]
    for vocabulary, merges in forms:
        tokenizer = BytePairTokenizer(vocabulary, merges)
        assert (tokenizer.vocabulary, tokenizer.merges) == (VOCABULARY, [("l", "o")])
    from_files = BytePairTokenizer(tmp_path / "vocab.json", str(tmp_path / "merges.txt"))
    assert from_files.get_config() == plain.get_config()


@pytest.mark.parametrize(
    ("vocabulary", "merges", "options", "message"),
    [
        (VOCABULARY[:-40], [], {}, r"all 243 bytes that .*Received: 227 pieces without .* …"),
        ([*VOCABULARY, "lo"], [], {}, "must be unique. Received: 'lo' twice"),
        ({"a": 0, "b": 2}, [], {}, "from 0 without gaps. Received: a vocabulary"),
        (VOCABULARY, ["l o w"], {}, "must be two pieces .*Received: 'l o w' as number 0"),
        (VOCABULARY, ["l o", "l w"], {}, "and its result. Received: merge l w without 'lw'"),
        ([*VOCABULARY, "東", "東l"], ["東 l"], {}, "stand for bytes .*Received: 東 l"),
        (VOCABULARY, [], {"special_tokens": {"cls": "[CLS]"}}, "Received: '\\[CLS\\]'"),
        (VOCABULARY, [], {"normalization": "nfkc"}, "\"nfc\" or None. Received: 'nfkc'"),
        (
            VOCABULARY,
            [],
            {"added_tokens": ["er", "x y"]},
            "tokens of the vocabulary.*Received: 'x y'",
        ),
        (["", *VOCABULARY], [], {"added_tokens": [""]}, "and not empty. Received: ''"),
        (VOCABULARY, [], {"added_tokens": ["<s>"]}, "Received: '<s>' as both"),
        (
            VOCABULARY,
            [],
            {"normalized_tokens": ["<s>"]},
            "require a normalization .*'<s>'. without",
        ),
        (
            VOCABULARY,
            [],
            {"normalized_tokens": ["er"], "normalization": "nfc"},
            "added or special .*Received: 'er'",
        ),
    ],
)
def test_errors(vocabulary, merges, options, message):
    with pytest.raises(ValueError, match=message):
        BytePairTokenizer(vocabulary, merges, **options)


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such JSON file. Received: .*vocab.json"):
        BytePairTokenizer(tmp_path / "vocab.json", [])
    with pytest.raises(FileNotFoundError, match=r"No merges file .*merges.txt"):
        BytePairTokenizer(VOCABULARY, tmp_path / "merges.txt")
