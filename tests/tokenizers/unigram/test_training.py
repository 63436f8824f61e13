"""Training: the same model every time, ALBERT's and XLM-R's beginnings, long lines, errors."""

import pytest

from kbert.data.denoising.spans import SpanCorruption
from kbert.tokenizers import UnigramTokenizer, train_tokenizer, train_unigram
from tests.tokenizers.unigram.sentencepiece_reference import corpus


def test_it_begins_as_alberts():
    tokenizer = UnigramTokenizer(train_unigram(corpus(), 200))
    assert tokenizer.vocabulary[:13] == [
        "<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "(", ")", '"', "-", ".", "–", "£", "€"
    ]  # fmt: skip
    assert tokenizer.vocabulary_size <= 200
    assert not [piece for piece in tokenizer.vocabulary[5:] if piece != piece.lower()]
    fairseq = UnigramTokenizer(train_unigram(corpus(), 200, layout="fairseq"), layout="fairseq")
    assert fairseq.vocabulary[:4] == ["<s>", "<pad>", "</s>", "<unk>"]


def test_it_has_sentinels_that_no_text_contains():
    sentinels = ["<extra_id_0>", "<extra_id_1>"]
    for layout in ("sentencepiece", "fairseq"):
        model = train_unigram(corpus(), 200, layout=layout, num_sentinels=2)
        tokenizer = UnigramTokenizer(model, layout=layout)
        ids = [tokenizer.token_to_id(sentinel) for sentinel in sentinels]
        assert SpanCorruption().sentinel_ids(tokenizer) == ids
        assert not set(ids) & set(tokenizer(["<extra_id_0> the <extra_id_1>"])[0].numpy())
    assert train_tokenizer(corpus(), 300, num_sentinels=2).vocabulary[5:7] == [
        "[unused0]",
        "[unused1]",
    ]
    with pytest.raises(ValueError, match=r"have no sentinels.*num_sentinels=2, kind='bpe'"):
        train_tokenizer(corpus(), 300, kind="bpe", num_sentinels=2)


def test_same_model_in_any_batching():
    first = train_unigram(corpus(), 150, max_sentences=300)
    whole = ["\n".join(corpus()).encode()]
    assert train_unigram(whole, 150, max_sentences=300) == first
    assert train_unigram(corpus(), 150, max_sentences=300, seed=1) != first


def test_text_is_prepared_as_for_encoding():
    texts = [f"``Ｓｔｒａßｅ'' No{n}\u00a0ÉCOLE" for n in range(50)]
    vocabulary = UnigramTokenizer(train_unigram(texts, 80, user_defined=())).vocabulary
    joined = "".join(vocabulary[5:])
    assert "`" not in joined
    assert "É" not in joined
    assert '"' in joined
    assert "s" in joined
    cased = UnigramTokenizer(train_unigram(texts, 80, lowercase=False)).vocabulary
    assert "É" not in "".join(cased)
    assert "C" in "".join(cased)


def test_accents_are_kept_with_the_case():
    tokenizer = train_tokenizer(["Zwölf Büsche"] * 20, 40, kind="unigram", lowercase=False)
    assert tokenizer.decode(tokenizer.encode("Zwölf Büsche")).numpy().decode() == "Zwölf Büsche"
    tokenizer = train_tokenizer(["Zwölf Büsche"] * 20, 40, kind="unigram")
    assert tokenizer.decode(tokenizer.encode("Zwölf Büsche")).numpy() == b"zwolf busche"


def test_long_lines_are_cut_and_not_left_out():
    rare = "zebra " * 900 + "q" * 9000 + "東" * 3000
    model = train_unigram([*corpus(200), rare], 150, character_coverage=1.0)
    assert {"z", "東", "q"} <= set("".join(UnigramTokenizer(model).vocabulary))


def test_errors():
    with pytest.raises(TypeError, match="one str of 3 characters; put it in a list"):
        train_unigram("low", 100)
    with pytest.raises(TypeError, match=r"A text must be a str or bytes. Received: 7"):
        train_unigram([7], 100)
    with pytest.raises(ValueError, match=r"requires texts with words. Received: none"):
        train_unigram(["", " \t"], 100)
    with pytest.raises(
        ValueError, match=r"Received: vocabulary_size=20, .* reports: Vocabulary size"
    ):
        train_unigram(corpus(), 20)


def test_a_tokenizer_of_any_kind():
    for kind, size in (("wordpiece", 200), ("bpe", 300), ("unigram", 200), ("words", 200)):
        tokenizer = train_tokenizer(corpus(100), size, kind=kind)
        assert tokenizer.kind == kind
        assert tokenizer.vocabulary_size <= size
        assert tokenizer.unk_id not in tokenizer.encode("the lights of winter").numpy()
    with pytest.raises(ValueError, match=r"wordpiece, bpe, unigram, words. Received: 'letters'"):
        train_tokenizer(corpus(1), 20, kind="letters")
    with pytest.raises(ValueError, match=r"keep a text as it is. Received: lowercase=True"):
        train_tokenizer(corpus(1), 300, kind="bpe", lowercase=True)


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match=r"layout must be one of sentencepiece.*Received: 'bert'"):
        train_unigram(["the light"] * 9, 30, layout="bert")
