import io

import pytest
import tensorflow as tf

import kbert
from kbert.data.pretraining.examples import show_examples


@pytest.fixture
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture
def dataset(tokenizer):
    """[CLS] the red fox [SEP] the dog [SEP], of which red, fox and dog are predicted."""
    ids = [tokenizer.token_to_id(t) for t in "[CLS] the [MASK] cat [SEP] the dog [SEP]".split()]
    targets = [tokenizer.token_to_id(t) for t in ("red", "fox", "dog")]
    batch = {
        "token_ids": [[*ids, 0, 0]] * 2,
        "padding_mask": [[1] * 8 + [0, 0]] * 2,
        "mask_positions": [[2, 3, 6, 0]] * 2,
        "mask_ids": [[*targets, 0]] * 2,
        "mask_weights": [[1.0, 1.0, 1.0, 0.0]] * 2,
        "next_sentence_labels": [0, 1],
    }
    return tf.data.Dataset.from_tensors(batch)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_masked_random_and_kept_are_told_apart(dataset, tokenizer):
    out = io.StringIO()
    show_examples(dataset, tokenizer, n=1, file=out)
    assert out.getvalue().splitlines() == [
        "8 tokens, 3 predicted: 1 masked, 1 random, 1 kept; next: actual",
        "  [CLS] the {red -> [MASK]} {fox -> cat} [SEP] the {dog} [SEP]",
    ]


def test_n_rows_are_shown(dataset, tokenizer, capsys):
    show_examples(dataset, tokenizer, n=5)
    titles = [line for line in capsys.readouterr().out.splitlines() if "predicted" in line]
    assert [title.rsplit(" ", 1)[1] for title in titles] == ["actual", "random"]


def test_colours_on_a_terminal_only(dataset, tokenizer):
    out = Terminal()
    show_examples(dataset, tokenizer, n=1, file=out)
    line = out.getvalue().splitlines()[1]
    assert "\033[31m{red -> [MASK]}\033[0m" in line
    assert "\033[33m{fox -> cat}\033[0m" in line
    assert "\033[32m{dog}\033[0m" in line


def test_long_rows_are_wrapped(tokenizer):
    word = tokenizer.token_to_id("jumps")
    batch = {
        "token_ids": [[word] * 60],
        "padding_mask": [[1] * 60],
        "mask_positions": [[0]],
        "mask_ids": [[0]],
        "mask_weights": [[0.0]],
    }
    out = io.StringIO()
    show_examples(tf.data.Dataset.from_tensors(batch), tokenizer, n=1, file=out)
    lines = out.getvalue().splitlines()
    assert lines[0] == "60 tokens, 0 predicted: 0 masked, 0 random, 0 kept"
    assert all(len(line) <= 102 for line in lines)
    assert len(lines) == 5
    assert " ".join(lines[1:]).split() == ["jumps"] * 60


def shown(tokenizer, ids, positions, targets, **features):
    """The lines of one row without padding."""
    batch = {
        "token_ids": [[tokenizer.token_to_id(token) for token in ids]],
        "padding_mask": [[1] * len(ids)],
        "mask_positions": [positions],
        "mask_ids": [[tokenizer.token_to_id(token) for token in targets]],
        "mask_weights": [[1.0] * len(positions)],
        **features,
    }
    out = io.StringIO()
    show_examples(tf.data.Dataset.from_tensors(batch), tokenizer, n=1, file=out)
    return out.getvalue().splitlines()


def test_spans_and_swapped_halves(tokenizer):
    title, line = shown(
        tokenizer,
        "[CLS] the [MASK] [MASK] the dog [SEP]".split(),
        [2, 3, 5],
        ["red", "fox", "dog"],
        span_starts=[[2, 2, 5]],
        span_ends=[[3, 3, 5]],
        sentence_order_labels=[1],
    )
    assert title == "7 tokens, 3 predicted: 2 masked, 0 random, 1 kept; order: swapped"
    assert line == "  [CLS] the <{red -> [MASK]} {fox -> [MASK]}> the <{dog}> [SEP]"


def test_a_position_drawn_twice_is_counted(tokenizer):
    ids = "[CLS] the [MASK] [SEP]".split()
    title, line = shown(tokenizer, ids, [2, 1, 2], ["fox", "the", "fox"])
    assert title == "4 tokens, 3 predicted: 1 masked, 0 random, 1 kept"
    assert line == "  [CLS] {the} {fox -> [MASK]}x2 [SEP]"


def test_language_model_rows_are_shown_in_both_directions():
    words = kbert.tokenizers.WordTokenizer(["</S>", "<S>", "<UNK>", "to", "be", "日本"])
    batch = {
        "character_ids": [["<S>", "日本", "to", "</S>"]],
        "reverse_character_ids": [["</S>", "sein", "be", "</S>"]],
        "targets": [[5, 3, 2, 0]],
        "reverse_targets": [[4, 2, 1, 0]],
        "weights": [[1.0, 1.0, 1.0, 0.0]],
        "reverse_weights": [[1.0, 1.0, 0.0, 0.0]],
    }
    for name in ("character_ids", "reverse_character_ids"):
        batch[name] = kbert.tokenizers.character_ids(batch[name], 7)
    out = io.StringIO()
    show_examples(tf.data.Dataset.from_tensors(batch), words, n=1, file=out)
    assert out.getvalue().splitlines() == [
        "forward: 3 words",
        "  reads: <S> 日\N{REPLACEMENT CHARACTER} to",
        "  predicts: 日本 to <UNK>",
        "backward: 2 words",
        "  reads: </S> sein",
        "  predicts: be <UNK>",
    ]


def test_rows_of_a_causal_language_model(tokenizer):
    ids = [tokenizer.token_to_id(t) for t in "[SEP] the red fox [SEP] [SEP]".split()]
    batch = {"token_ids": [ids[:-1]], "targets": [ids[1:]], "weights": [[1.0, 1.0, 1.0, 1.0, 0.0]]}
    out = io.StringIO()
    show_examples(tf.data.Dataset.from_tensors(batch), tokenizer, file=out)
    assert out.getvalue().splitlines() == [
        "4 tokens, each predicted from [SEP] and the tokens before it",
        "  the red fox [SEP]",
    ]


def test_rows_of_sentence_pairs(tokenizer):
    source = [tokenizer.token_to_id(t) for t in "the fox [SEP] [PAD]".split()]
    target = [tokenizer.token_to_id(t) for t in "the red fox [SEP]".split()]
    batch = {
        "encoder_token_ids": [source],
        "encoder_padding_mask": [[1, 1, 1, 0]],
        "decoder_token_ids": [[tokenizer.cls_id, *target[:-1]]],
        "targets": [target],
        "weights": [[1.0, 1.0, 1.0, 1.0]],
    }
    out = io.StringIO()
    show_examples(tf.data.Dataset.from_tensors(batch), tokenizer, file=out)
    assert out.getvalue().splitlines() == [
        "3 source tokens and 4 target tokens, each predicted from [CLS] and the targets before it",
        "  source: the fox [SEP]",
        "  target: the red fox [SEP]",
    ]


def test_rows_of_a_fragment_have_its_positions(tokenizer):
    source = [tokenizer.token_to_id(t) for t in "[CLS] the [MASK] [MASK] [SEP]".split()]
    target = [tokenizer.token_to_id(t) for t in "red fox [PAD]".split()]
    batch = {
        "encoder_token_ids": [source] * 2,
        "encoder_padding_mask": [[1] * 5] * 2,
        "decoder_token_ids": [[tokenizer.token_to_id("the"), *target[:-1]]] * 2,
        "decoder_position_ids": [[1, 2, 0], [0, 0, 0]],
        "targets": [target] * 2,
        "weights": [[1.0, 1.0, 0.0], [0.0] * 3],
    }
    out = io.StringIO()
    show_examples(tf.data.Dataset.from_tensors(batch), tokenizer, file=out)
    assert out.getvalue().splitlines() == [
        "5 source tokens and 2 target tokens, each predicted from the and the targets before it, "
        "at positions 1 to 2",
        "  source: [CLS] the [MASK] [MASK] [SEP]",
        "  target: red fox",
        "5 source tokens and 0 target tokens, each predicted from the and the targets before it",
        "  source: [CLS] the [MASK] [MASK] [SEP]",
        "  target:",
    ]


def test_examples_of_a_packed_row(tokenizer):
    tokens = "[CLS] the [MASK] [SEP] [CLS] dog [SEP]".split()
    fox, dog = (tokenizer.token_to_id(t) for t in ("fox", "dog"))
    batch = {
        "token_ids": [[*map(tokenizer.token_to_id, tokens), 0]],
        "padding_mask": [[1, 1, 1, 1, 1, 1, 1, 0]],
        "example_ids": [[1, 1, 1, 1, 2, 2, 2, 0]],
        "cls_positions": [[0, 4, 0]],
        "mask_positions": [[2, 5, 0]],
        "mask_ids": [[fox, dog, 0]],
        "mask_weights": [[1.0, 1.0, 0.0]],
        "next_sentence_labels": [[0, 1, 0]],
    }
    out = io.StringIO()
    show_examples(tf.data.Dataset.from_tensors(batch), tokenizer, n=1, file=out)
    assert out.getvalue().splitlines() == [
        "a sequence of 2 examples, 7 of 8 tokens",
        "4 tokens, 1 predicted: 1 masked, 0 random, 0 kept; next: actual",
        "  [CLS] the {fox -> [MASK]} [SEP]",
        "3 tokens, 1 predicted: 0 masked, 0 random, 1 kept; next: random",
        "  [CLS] {dog} [SEP]",
    ]
