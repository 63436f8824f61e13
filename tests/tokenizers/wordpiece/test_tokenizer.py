"""WordPieceTokenizer: ids, special tokens, decoding, graphs, errors."""

import hashlib
import pickle
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from tests.processes import run_code

PIECES = (
    "a b e i o s t ß n ! , . ' ? [ ] - $ 1 2 ½ … ™ ﬁ ##s ##less ##ing flight cafe naive no yes mask"
    " title σ ο ##δ ##ο ##ς ##σ 東 京 ##京 ᄀ ##ᅡ ##ᆨ и ##и и́ tok ##yo straße don t you think it s"
).split()
VOCABULARY = [*SPECIAL_TOKENS, *dict.fromkeys(PIECES)]


@pytest.fixture(scope="module")
def uncased() -> WordPieceTokenizer:
    return WordPieceTokenizer(VOCABULARY)


def pieces(tokenizer: WordPieceTokenizer, text: str) -> list[str]:
    return [tokenizer.vocabulary[i] for i in tokenizer.encode(text).numpy()]


# What google-research/bert gives for these, where Hugging Face or other kernels go their own ways.
GOOGLE = {
    "A flightless  CAFÉ!": "[a, flight, ##less, cafe, !]",
    "nai\u0308ve Naïve": "[naive, naive]",
    "½ … ™ ﬁ ß": "[½, …, ™, ﬁ, ß]",  # no compatibility folding
    "straße STRASSE": "[straße, [UNK]]",
    "東京Tokyo": "[東, 京, tok, ##yo]",
    "각": "[ᄀ, ##ᅡ, ##ᆨ]",  # NFD takes Hangul apart
    "ΟΔΟΣ ΟΔΟΣο": "[ο, ##δ, ##ο, ##ς, ο, ##δ, ##ο, ##σ, ##ο]",  # final sigma
    "[MASK]": "[[, mask, ]]",
    "ca\u00adfe\u200b ca\u0000fe c\ufffdafe": "[cafe, cafe, cafe]",  # dropped, the word stays
    "no\u2028yes\u2029no": "[no, yes, no]",
    "fli\u0085ght": "[flight]",  # a control, not a line end
    "no\u00a0yes\u3000no": "[no, yes, no]",
    "no\ttitle\r\nyes": "[no, title, yes]",
    "a\ue000 \ue000": "[[UNK], [UNK]]",  # private use is a letter
    "TITLE": "[title]",
    "it's $1": "[it, ', s, $, 1]",
    "": "[]",
    " \u0301 ": "[]",
    "q": "[[UNK]]",
}


@pytest.mark.parametrize("text", GOOGLE, ids=ascii)
def test_pieces_are_those_of_googles_code(uncased, text):
    assert "[" + ", ".join(pieces(uncased, text)) + "]" == GOOGLE[text]


def test_cased_keeps_case_and_accents():
    cased = WordPieceTokenizer([*SPECIAL_TOKENS, "É", "é", "e"], lowercase=False)
    assert pieces(cased, "É é e e\u0301") == ["É", "é", "e", "[UNK]"]


def test_strip_accents_can_differ_from_lowercase():
    vocabulary = [*SPECIAL_TOKENS, "é", "e", "E"]
    keep = WordPieceTokenizer(vocabulary, strip_accents=False)
    strip = WordPieceTokenizer(vocabulary, lowercase=False, strip_accents=True)
    assert pieces(keep, "É é e") == ["é", "é", "e"]
    assert pieces(strip, "É é e") == ["E", "e", "e"]


def test_ids_do_not_depend_on_the_batch(uncased):
    texts = [*GOOGLE, "s" * 300 + " yes"]
    together = uncased.encode(texts)
    assert together.dtype == tf.int32
    assert together.shape.as_list() == [len(texts), None]
    assert together.to_list() == [uncased.encode(text).numpy().tolist() for text in texts]


def test_one_string_gives_one_row(uncased):
    for text in ("yes no", tf.constant("yes no"), np.array("yes no", object), b"yes no"):
        ids = uncased.encode(text)
        assert isinstance(ids, tf.Tensor)
        assert ids.shape.rank == 1
        assert [uncased.vocabulary[i] for i in ids.numpy()] == ["yes", "no"]
    assert uncased.encode_with_offsets("yes no")["ends"].numpy().tolist() == [3, 6]


def test_empty_batch(uncased):
    assert uncased.encode([]).to_list() == []
    assert uncased.encode_with_offsets([])["starts"].to_list() == []


def test_invalid_utf8_is_dropped_as_google_does(uncased):
    # convert_to_unicode: text.decode("utf-8", "ignore")
    texts = [b"ca\xfffe", b"\xe4\xbd", b"no \xed\xa0\x80yes", b"ca\xe4\xc2\xad\xbd\xa0fe", b"yes"]
    expected = uncased.encode([text.decode("utf-8", "ignore") for text in texts])
    assert uncased.encode(texts).to_list() == expected.to_list()
    assert uncased.encode_with_offsets(texts)["token_ids"].to_list() == expected.to_list()


def test_wrong_rank_raises(uncased):
    with pytest.raises(ValueError, match=r"1-D list or tensor of strings. Received: .*\(1, 2\)"):
        uncased.encode([["yes", "no"]])
    with pytest.raises(ValueError, match=r".byte. or .character.\. Received: 'word'"):
        uncased.encode_with_offsets(["yes"], unit="word")


@pytest.fixture(scope="module")
def keeping() -> WordPieceTokenizer:
    return WordPieceTokenizer(VOCABULARY, special_tokens_in_text=True)


def test_special_tokens_in_text_are_kept_whole(keeping):
    text = "no[MASK][MASK]. [CLS]yes [SEP] [PAD] [UNK] [mask] [MASK"
    expected = "no [MASK] [MASK] . [CLS] yes [SEP] [PAD] [UNK] [ mask ] [ mask".split()
    assert pieces(keeping, text) == expected


def test_private_use_characters_do_not_pass_for_special_tokens(keeping, uncased):
    texts = [chr(code) for code in range(0xE000, 0xE010)] + ["yes\ue000[MASK]", "\ue001 [MASK]"]
    ids = keeping.encode(texts).to_list()
    assert ids[:16] == [[uncased.unk_id]] * 16
    assert ids[16:] == [[uncased.unk_id, uncased.mask_id]] * 2


def test_special_tokens_have_their_own_range(keeping):
    text = "é[MASK]x [CLS]."
    for unit, given in (("byte", text.encode()), ("character", text)):
        out = keeping.encode_with_offsets(text, unit)
        slices = [given[a:z] for a, z in zip(out["starts"], out["ends"], strict=True)]
        expected = ["é", "[MASK]", "x", "[CLS]", "."]
        assert slices == [s.encode() if unit == "byte" else s for s in expected]


def test_ids_of_special_tokens_and_lookups(uncased):
    t = uncased
    assert (t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id) == (0, 1, 2, 3, 4)
    assert t.special_ids == [0, 1, 2, 3, 4]
    assert t.vocabulary_size == len(VOCABULARY)
    assert t.id_to_token(t.token_to_id("flight")) == "flight"
    assert [p for p, c in zip(VOCABULARY, t.continuation, strict=True) if c] == [
        p for p in VOCABULARY if p.startswith("##")
    ]
    with pytest.raises(ValueError, match=r"The token must be one of .* Received: 'zebra'"):
        t.token_to_id("zebra")
    with pytest.raises(ValueError, match=rf"0 to {len(VOCABULARY) - 1}. Received: -1"):
        t.id_to_token(-1)


def test_checksum_names_the_vocabulary(uncased):
    assert uncased.checksum == WordPieceTokenizer(VOCABULARY, lowercase=False).checksum
    assert uncased.checksum != WordPieceTokenizer(VOCABULARY[:-1]).checksum
    by_hand = hashlib.sha256("\n".join(VOCABULARY).encode("utf-8")).hexdigest()
    assert uncased.checksum == by_hand


def test_decode_joins_pieces_and_tidies(uncased):
    text = "don't you think, it's a flightless cafe?"
    ids = uncased.encode(text)
    assert uncased.decode(ids).numpy().decode() == text
    assert uncased.decode(ids.numpy()) == text
    batch = [[2, *ids.numpy(), 3, 0, 0], [], [1]]
    assert uncased.decode(batch) == [text, "", "[UNK]"]
    assert uncased.decode([2, 4, 3], skip_special_tokens=False) == "[CLS] [MASK] [SEP]"
    assert uncased.decode([]) == ""


def test_decode_in_a_graph_takes_dense_and_ragged(uncased):
    decode = tf.function(uncased.decode)
    ragged = uncased.encode(["flightless", "no yes"])
    assert decode(ragged).numpy().tolist() == [b"flightless", b"no yes"]
    assert decode(ragged.to_tensor()).numpy().tolist() == [b"flightless", b"no yes"]


def test_decode_refuses_ids_outside_the_vocabulary(uncased):
    with pytest.raises(ValueError, match="Token ids must be from 0 to"):
        uncased.decode([uncased.vocabulary_size])
    with pytest.raises(ValueError, match=f"Token ids must be from 0 to .*: {2**32 + 5}"):
        uncased.decode([2**32 + 5])


def test_inside_tf_data_and_functions_of_unknown_batch_size(uncased):
    texts = ["flightless no", "yes", "", "CAFÉ 東京"] * 3
    expected = uncased.encode_with_offsets(texts)
    data = tf.data.Dataset.from_tensor_slices(texts).batch(5).map(uncased.encode_with_offsets)
    rows = {key: [row for batch in data for row in batch[key].to_list()] for key in expected}
    assert rows == {key: value.to_list() for key, value in expected.items()}
    encode = tf.function(uncased.encode, input_signature=[tf.TensorSpec([None], tf.string)])
    assert encode(tf.constant(texts)).to_list() == expected["token_ids"].to_list()
    assert encode(tf.constant([], tf.string)).to_list() == []


@pytest.mark.slow
@pytest.mark.tensorflow
def test_saved_model_by_the_session_loader(keeping, tmp_path):
    """TensorFlow Serving loads by session; nothing in the tokenizer may need tracking."""
    import keras

    archive = keras.export.ExportArchive()
    archive.add_endpoint(
        "ids",
        lambda texts: keeping.encode(texts).to_tensor(),
        [tf.TensorSpec([None], tf.string, name="texts")],
    )
    archive.add_endpoint(
        "ends",
        lambda texts: keeping.encode_with_offsets(texts, "character")["ends"].to_tensor(),
        [tf.TensorSpec([None], tf.string, name="texts")],
    )
    archive.write_out(tmp_path / "model", verbose=False)
    program = f"""
        import tensorflow as tf, tensorflow_text
        with tf.compat.v1.Session(graph=tf.Graph()) as session:
            model = tf.compat.v1.saved_model.loader.load(
                session, ["serve"], {str(tmp_path / "model")!r})
            for name in ("ids", "ends"):
                signature = model.signature_def[name]
                feed = next(iter(signature.inputs.values())).name
                fetch = next(iter(signature.outputs.values())).name
                print(session.run(fetch, {{feed: ["flightless [MASK]", "東京"]}}).tolist())
    """
    out = run_code(textwrap.dedent(program))
    ids, ends = map(eval, out.split("\n")[:2])
    assert ids == keeping.encode(["flightless [MASK]", "東京"]).to_tensor().numpy().tolist()
    assert ends == [[6, 10, 17], [1, 2, 0]]


def test_config_and_pickle_round_trip(keeping):
    for copy in (
        WordPieceTokenizer.from_config(keeping.get_config()),
        pickle.loads(pickle.dumps(keeping)),
    ):
        assert copy.get_config() == keeping.get_config()
        assert copy.encode("[MASK] CAFÉ").numpy().tolist() == [4, VOCABULARY.index("cafe")]
