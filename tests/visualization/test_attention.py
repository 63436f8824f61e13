"""Attention of every kind of model: whose it is, what its rows are called, and what is refused."""

import numpy as np
import pytest
from keras import ops

import kbert
from kbert import visualization
from kbert.models.generators.decoder import Decoder
from kbert.models.generators.seq2seq import Seq2Seq
from kbert.visualization import attention_drawing
from kbert.visualization.attention_reading import read_attention, token_names
from tests.harness import randomise, tiny_config

SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "intermediate_size": 32}


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture(scope="module")
def encoder(tokenizer):
    encoder = kbert.Encoder(tiny_config(vocabulary_size=tokenizer.vocabulary_size))
    randomise(encoder)
    return encoder


@pytest.fixture(scope="module")
def decoder(tokenizer):
    decoder = Decoder(
        kbert.DecoderConfig(
            vocabulary_size=tokenizer.vocabulary_size, max_positions=12, dropout=0.0, **SIZES
        )
    )
    randomise(decoder)
    return decoder


@pytest.fixture(scope="module")
def seq2seq(tokenizer):
    seq2seq = Seq2Seq(
        kbert.Seq2SeqConfig(
            vocabulary_size=tokenizer.vocabulary_size, max_positions=12, dropout=0.0, **SIZES
        )
    )
    randomise(seq2seq)
    return seq2seq


def ids_of(tokenizer, text):
    return np.array([[tokenizer.token_to_id(token) for token in text.split()]], "int32")


def stacked(attention):
    return np.stack([ops.convert_to_numpy(layer)[0] for layer in attention])


def test_an_encoder_is_given_the_text_between_its_special_tokens(encoder, tokenizer):
    (found,) = read_attention(encoder, "The fox jumps!", tokenizer=tokenizer).values()
    names = "[CLS] the fox jumps ! [SEP]"
    assert found.rows == found.columns == names.split()
    out = encoder({"token_ids": ids_of(tokenizer, names)}, return_attention=True)
    np.testing.assert_allclose(found.values, stacked(out["attention"]), atol=1e-6)
    np.testing.assert_allclose(found.values.sum(-1), 1, atol=1e-5)


def test_a_pair_has_two_segments(encoder, tokenizer):
    (found,) = read_attention(encoder, ("the fox", "a dog"), tokenizer=tokenizer).values()
    names = "[CLS] the fox [SEP] a dog [SEP]"
    assert found.rows == names.split()
    segments = np.array([[0, 0, 0, 0, 1, 1, 1]])
    inputs = {"token_ids": ids_of(tokenizer, names), "segment_ids": segments}
    out = encoder(inputs, return_attention=True)
    np.testing.assert_allclose(found.values, stacked(out["attention"]), atol=1e-6)


def test_a_mask_in_the_text_is_a_mask(encoder, tokenizer):
    (found,) = read_attention(encoder, "the [MASK] jumps", tokenizer=tokenizer).values()
    assert found.rows == "[CLS] the [MASK] jumps [SEP]".split()


def test_a_task_brings_its_tokenizer(encoder, tokenizer):
    task = kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"])
    (ours,) = read_attention(task, "the fox").values()
    (theirs,) = read_attention(encoder, "the fox", tokenizer=tokenizer).values()
    np.testing.assert_array_equal(ours.values, theirs.values)


def test_a_decoder_looks_back(decoder, tokenizer):
    found = read_attention(decoder, "the quick fox jumps", tokenizer=tokenizer)
    assert list(found) == ["decoder"]
    values = found["decoder"].values
    assert found["decoder"].rows == "the quick fox jumps".split()
    behind = np.tri(4, dtype=bool)
    assert values[..., ~behind].max() == 0
    assert values[..., behind].min() > 0
    ids = ids_of(tokenizer, "the quick fox jumps")
    out = decoder({"token_ids": ids}, return_attention=True)
    np.testing.assert_allclose(values, stacked(out["attention"]), atol=1e-6)


def test_a_translator_has_three_kinds(seq2seq, tokenizer):
    found = read_attention(seq2seq, ("the quick fox", "a dog"), tokenizer=tokenizer)
    assert list(found) == ["cross", "encoder", "decoder"]
    source = ids_of(tokenizer, "the quick fox [SEP]")
    read = ids_of(tokenizer, "[CLS] a dog")
    out = seq2seq({"encoder_token_ids": source, "decoder_token_ids": read}, return_attention=True)
    for kind, name in (
        *(("cross", "cross_attention"), ("encoder", "encoder_attention")),
        ("decoder", "attention"),
    ):
        np.testing.assert_allclose(found[kind].values, stacked(out[name]), atol=1e-6)
    assert found["encoder"].rows == found["cross"].columns == "the quick fox [SEP]".split()
    assert found["decoder"].rows == "[CLS] a dog".split()
    # The step that reads [CLS] writes "a": a row of the alignment is what is written.
    assert found["cross"].rows == "a dog [SEP]".split()


@pytest.mark.tensorflow
def test_a_translator_writes_the_target_itself(seq2seq, tokenizer):
    task = kbert.tasks.Translator(seq2seq, tokenizer)
    (target,) = task.predict(["the fox"])
    alone = read_attention(task, "the fox")
    given = read_attention(task, ("the fox", target))
    assert alone["cross"].rows == given["cross"].rows
    np.testing.assert_array_equal(alone["cross"].values, given["cross"].values)


class TwoVocabularies(kbert.WordPieceTokenizer):
    """Sources of one vocabulary, targets of another one."""

    target = kbert.WordPieceTokenizer([*kbert.tokenizers.SPECIAL_TOKENS, "sonne", "die"])


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", ["bart", "t5", "two vocabularies"])
def test_a_task_is_given_the_rows_that_it_was_trained_on(kind, tiny_vocabulary):
    tokenizer, own_rows, target = kbert.WordPieceTokenizer(tiny_vocabulary), None, " a dog\n"
    settings = {"generation": {"decoder_start_token_id": tokenizer.pad_id}, "prefix": "the "}
    if kind == "bart":
        settings = {"special_tokens": "all"}
        settings["generation"] = {"decoder_start_token_id": tokenizer.sep_id}
    elif kind == "two vocabularies":
        tokenizer, own_rows, target = TwoVocabularies(tiny_vocabulary), 7, "die sonne"
        settings = {}
    config = kbert.Seq2SeqConfig(
        vocabulary_size=tokenizer.vocabulary_size, target_vocabulary_size=own_rows, **SIZES
    )
    model = Seq2Seq(config)
    randomise(model)
    task = kbert.TextToText(model, tokenizer, **settings)
    found = read_attention(task, ("fox jumps ", target))
    rows = task.tokenize(task.as_table([("fox jumps ", target)]), labelled=True)
    batch = {name: np.asarray(x) for name, x in task.assemble(rows.gather([0])).items()}
    read = {}
    for side in ("encoder", "decoder"):
        mask = batch[f"{side}_padding_mask"] > 0
        read[side] = batch[f"{side}_token_ids"][mask][None]
    written = batch["targets"][batch["decoder_padding_mask"] > 0]
    sides = [(tokenizer, found["encoder"], read["encoder"][0])]
    sides.append((tokenizer.target, found["decoder"], read["decoder"][0]))
    for reader, weights, ids in sides:
        assert weights.rows == [reader.id_to_token(i) for i in ids]
    assert found["cross"].rows == [tokenizer.target.id_to_token(i) for i in written]
    assert found["cross"].columns == found["encoder"].rows
    out = model({f"{side}_token_ids": ids for side, ids in read.items()}, return_attention=True)
    for name, attention in (("cross", "cross_attention"), ("decoder", "attention")):
        np.testing.assert_allclose(found[name].values, stacked(out[attention]), atol=1e-6)
    names = {
        "bart": ("[CLS] fox jumps [SEP]", "[SEP] [CLS] a dog", "[CLS] a dog [SEP]"),
        "t5": ("the fox jumps [SEP]", "[PAD] a dog", "a dog [SEP]"),
        "two vocabularies": ("fox jumps [SEP]", "[CLS] die sonne", "die sonne [SEP]"),
    }
    shown = found["encoder"].rows, found["decoder"].rows, found["cross"].rows
    assert tuple(map(" ".join, shown)) == names[kind]


@pytest.mark.tensorflow
def test_a_task_draws_the_best_of_several_answers(seq2seq, tokenizer):
    generation = {"num_beams": 2, "num_return_sequences": 2}
    task = kbert.TextToText(seq2seq, tokenizer, generation=generation)
    (answers,) = task.predict(["the fox"])
    (rows, best) = (
        read_attention(task, x)["cross"].rows for x in ("the fox", ("the fox", answers[0]))
    )
    assert rows == best


@pytest.mark.tensorflow
def test_a_source_that_the_task_would_truncate(seq2seq, tokenizer):
    task = kbert.TextToText(seq2seq, tokenizer, max_length=4, long_sources="truncate")
    with pytest.raises(ValueError, match=r"the task's max_length=4. Received: 5 tokens, of the so"):
        read_attention(task, ("the quick fox jumps", "a"))


@pytest.mark.parametrize(
    ("layer", "head", "shape", "title"),
    [
        (1, 2, (1, 1), "Encoder attention, layer 1, head 2"),
        (-1, -2, (1, 1), "Encoder attention, layer 1, head 2"),
        (0, None, (1, 4), "Encoder attention, layer 0"),
        (None, -1, (2, 1), "Encoder attention, head 3"),
        (None, None, (2, 4), "Encoder attention"),
    ],
    ids=str,
)
def test_what_is_chosen_is_what_is_drawn(
    layer, head, shape, title, encoder, tokenizer, drawn, monkeypatch
):
    seen = []
    draw = attention_drawing.draw
    monkeypatch.setattr(attention_drawing, "draw", lambda *args: seen.append(args) or draw(*args))
    figure = visualization.attention(encoder, "the fox", layer, head, tokenizer=tokenizer)
    ((weights, *_),) = seen
    (whole,) = read_attention(encoder, "the fox", tokenizer=tokenizer).values()
    layers = range(2) if layer is None else [layer]
    heads = range(4) if head is None else [head]
    assert weights.values.shape[:2] == shape
    np.testing.assert_array_equal(weights.values, whole.values[np.ix_(layers, heads)])
    assert title in drawn(figure)


@pytest.mark.parametrize(("length", "is_named"), [(6, True), (38, True), (44, False)])
def test_heads_of_a_layer_have_names_at_the_left_and_at_the_top(length, is_named, drawn):
    names = [f"word{i}" for i in range(length)]
    weights = np.full((12, length, length), 1 / length)
    figure = visualization.attention_map(weights, names)
    drawn(figure)
    panels = [axes for axes in figure.axes if axes.get_title().startswith("head")]
    assert len(panels) == 12
    across = len({axes.get_position().x0 for axes in panels})

    def visible(axis):
        return [x.get_text() for x in axis.get_ticklabels() if x.get_visible() and x.get_text()]

    shown = names if is_named else []
    for number, axes in enumerate(panels):
        assert visible(axes.xaxis) == (shown if number < across else [])
        assert visible(axes.yaxis) == (shown if number % across == 0 else [])


def test_a_translator_shows_its_alignment_unless_told_otherwise(seq2seq, tokenizer, drawn):
    texts = ("the quick fox", "a dog")
    plain = drawn(visualization.attention(seq2seq, texts, 0, 0, tokenizer=tokenizer))
    assert {"Cross attention, layer 0, head 0", "written", "source", "quick", "dog"} <= set(plain)
    arguments = {"tokenizer": tokenizer, "kind": "decoder", "title": "How it reads"}
    other = drawn(visualization.attention(seq2seq, texts, 0, 0, **arguments))
    assert {"How it reads", "[CLS]", "dog"} <= set(other)
    assert "quick" not in other


def test_the_page_of_a_translator_has_all_kinds(seq2seq, tokenizer):
    texts = ("the fox", "a dog runs")
    page = visualization.attention(seq2seq, texts, tokenizer=tokenizer, view="html")
    assert list(page.parts) == ["cross", "encoder", "decoder"]
    page = visualization.attention(seq2seq, texts, tokenizer=tokenizer, view="html", kind="encoder")
    assert list(page.parts) == ["encoder"]


def test_pieces_of_bytes_are_read_as_characters():
    words = ["Ġcaf", "Ã©", "åĮĹ", "Ã", "Ċ", "Ġ"]
    letters = [x for x in kbert.tokenizers.bpe.byte_alphabet.CHARACTERS if x not in words]
    vocabulary = {piece: i for i, piece in enumerate(["<s>", *words, *letters])}
    tokenizer = kbert.BytePairTokenizer(vocabulary, [], special_tokens={"cls": "<s>"})
    names = token_names(tokenizer, range(7))
    assert names == ["<s>", "Ġcaf", "é", "北", "Ã", "Ċ", "Ġ"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"texts": ["a", "b", "c"]}, ValueError, "one text or one pair of texts.* 3 texts"),
        ({"texts": []}, ValueError, "Received: 0 texts"),
        ({"texts": 3}, TypeError, "a text or a pair of texts. Received: 3"),
        ({"texts": [["a", "b"]]}, TypeError, "a text or a pair of texts"),
        ({"texts": ["a", "the \ud800"]}, ValueError, "Text 1 of attention.* half a surrogate pair"),
        ({"texts": "the " * 23}, ValueError, "max_positions=24. Received: 25 tokens, special"),
        ({"layer": 2}, ValueError, "layer must be a number from 0 to 1.* Received: 2"),
        ({"head": -5}, ValueError, "head must be a number from 0 to 3.* Received: -5"),
        ({"layer": "1"}, TypeError, "layer must be a whole number, or None for all"),
        (
            {"kind": "cross"},
            ValueError,
            "kind must be \"auto\" or one of encoder. Received: 'cross'",
        ),
        ({"view": "graph"}, ValueError, "view must be one of"),
        ({"tokenizer": None}, ValueError, "requires its tokenizer.* Received: Encoder without one"),
        ({"view": "html", "layer": 2}, ValueError, "layer must be a number from 0 to 1"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_what_cannot_be_drawn_of_an_encoder(arguments, error, message, encoder, tokenizer):
    arguments = {"texts": "the fox", "tokenizer": tokenizer, **arguments}
    with pytest.raises(error, match=message):
        visualization.attention(encoder, **arguments)


def test_what_cannot_be_drawn_of_decoders(decoder, seq2seq, tokenizer):
    def refuses(message, model, texts):
        with pytest.raises(ValueError, match=message):
            visualization.attention(model, texts, tokenizer=tokenizer)

    refuses("A decoder requires exactly one text. Received: 2 texts", decoder, ["a", "b"])
    refuses("at least one token. Received: ''", decoder, "")
    refuses("max_positions=12. Received: 13 tokens, of the text", decoder, "the " * 13)
    refuses("A target is required.* Received: a source alone", seq2seq, "the fox")
    refuses("Received: 13 tokens, of the source", seq2seq, ("the " * 12, "a"))
    refuses("Received: 13 tokens, of the target", seq2seq, ("a", "the " * 12))


def test_models_without_attention(tokenizer):
    with pytest.raises(TypeError, match=r"kbert.Encoder, .* Received: a str"):
        visualization.attention("bert-base-uncased", "the fox", tokenizer=tokenizer)


def test_more_tokens_than_a_picture_shows(tokenizer):
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, max_positions=160)
    with pytest.raises(ValueError, match=r"at most 128 tokens.* Received: 129 rows"):
        visualization.attention(kbert.Encoder(config), "the " * 127, tokenizer=tokenizer)


def test_one_network_and_a_decoder_in_the_place_of_an_encoder():
    tokenizer = kbert.WordPieceTokenizer([*kbert.tokenizers.SPECIAL_TOKENS, "it", "rains"])
    encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=7))
    model = kbert.models.PrefixSeq2Seq(encoder)
    weights = read_attention(model, ["it rains", "rains"], tokenizer=tokenizer)
    assert {name: part.values.shape[2:] for name, part in weights.items()} == {
        "cross": (2, 3),
        "encoder": (3, 3),
        "decoder": (2, 2),
    }
    config = kbert.family("gpt2-tiny").replace(vocabulary_size=7)
    reader = kbert.models.DecoderEncoder.extend(kbert.Decoder(config))
    assert list(read_attention(reader, "it rains", tokenizer=tokenizer)) == ["decoder"]
