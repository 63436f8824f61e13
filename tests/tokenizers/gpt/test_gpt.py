"""GPT's tokenizer gives the ids of Hugging Face's."""

import json

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

from kbert.tokenizers import GptTokenizer, load_tokenizer

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

TEXTS = [
    "The lower lowlands were slower than the lowest low tower.",
    "A newer, wider tower towers over the older one; who knows why?",
    "Ünïcode and naïve cafés: übergröße. 3 × 14 = 42!",
    "new news newly renewed lower lower lower",
]
HARD = [
    "",
    " ",
    "LOWER\tlower\nLower",
    "don't (stop)... now!?",
    "naïve Übergröße cafe\u0301",
    "emoji 😀 and 漢字 and ελληνικά zzz",
    "x" * 300,
    "a\u200bb \u00a0 c\u2028d",
    "low</w> <unk> lower",
]


@pytest.fixture(scope="module")
def files():
    """A vocabulary and merges with "</w>", trained by `tokenizers`."""
    model = tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
    trained = tokenizers.Tokenizer(model)
    trained.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    trained.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=140, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    trained.train_from_iterator(TEXTS * 3, trainer)
    content = json.loads(trained.to_str())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in content["merges"]]
    assert len(merges) > 30
    return content["vocab"], merges, trained


@pytest.fixture(scope="module")
def ours(files):
    vocabulary, merges, _ = files
    return GptTokenizer(vocabulary, merges)


@pytest.fixture(scope="module")
def theirs(files):
    """What Hugging Face makes of the files: BERT's normalisation and words, and this model."""
    return files[2]


def plain(text):
    """Without the special token, which Hugging Face finds in texts and we do not."""
    return text.replace("<unk>", "")


def test_ids_on_hard_texts(ours, theirs):
    texts = [plain(text) for text in [*TEXTS, *HARD]]
    assert ours.encode(texts).to_list() == [theirs.encode(text).ids for text in texts]


def test_ranges_on_hard_texts(ours, theirs):
    texts = [plain(text) for text in [*TEXTS, *HARD[:5]] if "\u0301" not in text]
    found = ours.encode_with_offsets(texts, unit="character")
    for i, text in enumerate(texts):
        ranges = list(zip(found["starts"][i].numpy(), found["ends"][i].numpy(), strict=True))
        assert ranges == theirs.encode(text).offsets, text
        assert found["word_index"][i].numpy().tolist() == theirs.encode(text).word_ids


def test_the_same_in_tf_data(ours):
    dataset = tf.data.Dataset.from_tensor_slices([*TEXTS, *HARD]).batch(4).map(ours.encode)
    found = [ids for batch in dataset for ids in batch.to_list()]
    assert found == ours.encode([*TEXTS, *HARD]).to_list()


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_categories=["Cn", "Co"]), max_size=30))
def test_any_text_has_ids_and_ranges(ours, text):
    eager = ours.encode([text]).to_list()
    assert all(0 <= i < ours.vocabulary_size for i in eager[0])
    found = ours.encode_with_offsets(text)
    assert found["token_ids"].numpy().tolist() == eager[0]
    length = len(text.encode())
    assert (found["starts"].numpy() <= found["ends"].numpy()).all()
    assert ((found["ends"].numpy() >= 0) & (found["ends"].numpy() <= length)).all()


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.text("lowernstiz", min_size=1, max_size=12), max_size=6))
def test_words_of_letters_are_hugging_face_s_and_come_back(ours, theirs, words):
    text = " ".join(words)
    ids = ours.encode(text).numpy().tolist()
    assert ids == theirs.encode(text).ids
    if ours.unk_id not in ids:
        assert ours.decode(ids) == text


def test_texts_come_back(ours):
    ids = ours.encode(TEXTS[3]).numpy().tolist()
    assert ours.decode(ids) == TEXTS[3]
    assert ours.decode([ids, []]) == [TEXTS[3], ""]


def test_a_character_that_ends_no_word_is_unknown_there():
    """Though it is known within one, and the other way round."""
    tokenizer = GptTokenizer(["<unk>", "a", "b</w>"], [])
    assert tokenizer.encode(["ab", "ba", "a", "b", "cb"]).to_list() == [
        [1, 2], [0, 0], [0], [2], [0, 2],
    ]  # fmt: skip


def test_a_folder_of_transformers(files, ours, tmp_path):
    vocabulary, merges, _ = files
    theirs = transformers.OpenAIGPTTokenizer(vocab=dict(vocabulary), merges=merges)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_tokenizer(tmp_path / "theirs")
    assert loaded.get_config() == ours.get_config()
    assert loaded.encode(TEXTS).to_list() == [theirs(text).input_ids for text in TEXTS]
    loaded.save(tmp_path / "ours")
    assert load_tokenizer(tmp_path / "ours").checksum == ours.checksum
    back = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert [back(text).input_ids for text in TEXTS] == ours.encode(TEXTS).to_list()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": None}, r"normalizer=\[\]"),
        ({"normalizer": {"type": "BertNormalizer", "lowercase": False}}, "'lowercase': False"),
        ({"pre_tokenizer": {"type": "WhitespaceSplit"}}, r"pre_tokenizer=\['WhitespaceSplit'\]"),
        ({"added_tokens": [{"id": 1, "content": "!"}]}, "'!' in .* found in every text"),
    ],
)
def test_another_pipeline_is_refused(files, tmp_path, change, message):
    vocabulary, merges, _ = files
    theirs = transformers.OpenAIGPTTokenizer(vocab=dict(vocabulary), merges=merges)
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


def test_the_files_of_the_release(files, ours, tmp_path):
    """vocab.json and merges.txt beside the model's config, which says what they are."""
    vocabulary, merges, _ = files
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
    (tmp_path / "merges.txt").write_text("\n".join(lines))
    message = r"end words with '</w>' requires GPT's .*config.json: OpenAIGPT.*Received: None in "
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "xlm"}')
    with pytest.raises(ValueError, match="Received: 'xlm' in "):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "openai-gpt"}')
    assert load_tokenizer(tmp_path).encode(TEXTS).to_list() == ours.encode(TEXTS).to_list()


def test_inside_a_saved_model(ours, tmp_path):
    module = tf.Module()
    module.encode = tf.function(
        lambda texts: ours.encode(texts).to_tensor(-1),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, str(tmp_path / "x"))
    again = tf.saved_model.load(str(tmp_path / "x")).encode(tf.constant(TEXTS))
    np.testing.assert_array_equal(again, ours.encode(TEXTS).to_tensor(-1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"special_tokens": {}}, "must have an unknown token.*Received: special_tokens={}"),
        ({"special_tokens": {"unk": "?"}}, "contain the special tokens. Received: '?"),
        ({"additional_special_tokens": ["[X]"]}, r"special tokens. Received: '\[X\]'"),
        ({"merges": ["a c"]}, "both parts of every merge.*Received: merge a c"),
        ({"merges": ["a</w> b</w>"]}, "Received: merge a</w> b</w>"),
        ({"merges": ["a"]}, "two pieces with a space between"),
    ],
)
def test_what_is_no_tokenizer(arguments, message):
    given = {"vocabulary": ["<unk>", "a", "b</w>", "a</w>"], "merges": [], **arguments}
    with pytest.raises(ValueError, match=message):
        GptTokenizer(**given)


def test_whole_words_cannot_be_masked(ours):
    with pytest.raises(ValueError, match=r"show where a word ends. Received: a GptTokenizer"):
        _ = ours.continuation
