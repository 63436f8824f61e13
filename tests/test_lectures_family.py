"""Facts from the lectures about BERT's descendants, as checks on the library.

Each test names the paper's section that the slide shows; where a slide rounds or errs, the test
holds the right value and says so. BERT's own are in `test_lectures.py`.
"""

import numpy as np
import pytest

import kbert
from kbert.catalog.distillation import DISTILLATIONS
from kbert.data.corpus.records import token_dtype
from kbert.data.masking.hashing import fold
from kbert.data.masking.ngrams import NGRAM_WEIGHTS, SPAN_WEIGHTS, draw_lengths
from kbert.tasks.pretraining.replaced_tokens import generator_config
from kbert.tokenizers import SPECIAL_TOKENS
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from tests.harness import tiny_config, tiny_inputs


def parameters(name: str) -> int:
    return kbert.describe(name).parameters


def block_parameters(config: kbert.EncoderConfig) -> int:
    """Of one block: what a layer more, with weights of its own, adds."""
    config = config.replace(num_layer_groups=None)
    more = kbert.describe(config.replace(num_layers=config.num_layers + 1))
    return more.parameters - kbert.describe(config).parameters


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary) -> kbert.WordPieceTokenizer:
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Sixty documents, half of whose words are of several pieces."""
    rng = np.random.default_rng(0)
    words = (
        "the red fox jumps over houses in rivers and reddish books of kings one quick day".split()
    )
    sentences = [" ".join(rng.choice(words, 12)).capitalize() + "." for _ in range(60 * 40)]
    documents = ["\n".join(sentences[i : i + 40]) for i in range(0, len(sentences), 40)]
    path = tmp_path_factory.mktemp("lectures") / "text.txt"
    path.write_text("\n\n".join(documents))
    return [str(path)]


def batches(corpus, tokenizer, **options):
    """One epoch of rows, with the tokens as they were before masking."""
    rows = kbert.data.pretraining_dataset(
        corpus, tokenizer, sequence_length=128, batch_size=64, epochs=1, **options
    )
    for batch in rows.as_numpy_iterator():
        row, column = np.nonzero(batch["mask_weights"])
        position = batch["mask_positions"][row, column]
        original = batch["token_ids"].copy()
        original[row, position] = batch["mask_ids"][row, column]
        chosen = np.zeros(original.shape, bool)
        chosen[row, position] = True
        yield batch | {"original": original, "chosen": chosen}


# ALBERT, section 3.1: all layers share one block, so twelve layers weigh what one does.
def test_albert_applies_one_block_twelve_times():
    config = tiny_config(num_layers=12, num_layer_groups=1)
    encoder = kbert.Encoder(config)
    assert encoder.count_params() == kbert.Encoder(config.replace(num_layers=1)).count_params()
    inputs = tiny_inputs(config)
    states = encoder(inputs, return_hidden_states=True)["hidden_states"]
    assert len(states) == 13
    distances = [np.abs(a - b).max() for a, b in zip(states[1:], states[:-1], strict=True)]
    assert min(distances) > 0  # the same weights, but work in each layer


# ALBERT, section 3.1: what sharing and the narrow embeddings save, each by itself.
def test_where_albert_base_saves_its_parameters():
    albert = kbert.family("albert-base-v2")
    unshared = kbert.describe(albert.replace(num_layer_groups=None)).parameters
    assert unshared - parameters("albert-base-v2") == 11 * block_parameters(albert) == 77_966_592
    wide = kbert.describe(albert.replace(embedding_size=768)).parameters
    # Vocabulary, positions, segments, the LayerNorm's two rows; and no projection any more.
    rows = 30_000 + 512 + 2 + 2
    assert wide - parameters("albert-base-v2") == rows * (768 - 128) - (128 * 768 + 768)


# ALBERT, Table 1 and section 4: "18x fewer parameters" for ALBERT-large than for BERT-large. The
# paper counts xxlarge as 70 % of BERT-large, by a count of 235 M; the released weights are 66 %.
def test_albert_against_bert_large():
    large = parameters("bert-large-uncased")
    assert int(large / parameters("albert-large-v2")) == 18
    assert round(parameters("albert-xxlarge-v2") / large, 2) == 0.66
    assert parameters("albert-base-v2") / parameters("bert-base-uncased") < 1 / 9


# Transformer, slide "Where the parameters are": the feed-forward part has two thirds of a block.
def test_two_thirds_of_a_block_are_feed_forward():
    encoder = kbert.Encoder(kbert.family("bert-mini").replace(vocabulary_size=10))
    sizes = {w.path: np.prod(w.shape) for w in encoder.blocks[0].weights if w.ndim == 2}
    feed_forward = sum(size for path, size in sizes.items() if "feed_forward" in path)
    assert feed_forward / sum(sizes.values()) == pytest.approx(2 / 3)


# RoBERTa, section 4.4: the byte-level vocabulary of 50 K adds about 15 M and 20 M parameters.
@pytest.mark.parametrize(("size", "added"), [("base", 15_162_624), ("large", 20_216_832)])
def test_what_robertas_vocabulary_costs(size, added):
    bert, roberta = kbert.family(f"bert-{size}-uncased"), kbert.family(f"roberta-{size}")
    grown = bert.replace(vocabulary_size=roberta.vocabulary_size)
    assert kbert.describe(grown).parameters - kbert.describe(bert).parameters == added


# RoBERTa, section 4.4: bytes are a base vocabulary of 256, so no text has an unknown piece.
def test_bytes_leave_nothing_unknown(tokenizer):
    text = "snow ☃ and 漢字"
    bytewise = kbert.BytePairTokenizer(["<s>", "<pad>", "</s>", "<unk>", *CHARACTERS, "<mask>"], [])
    ids = bytewise.encode(text).numpy()
    assert len(CHARACTERS) == 256
    assert len(ids) == len(text.encode())
    assert bytewise.unk_id not in ids
    assert bytewise.decode(ids) == text
    assert tokenizer.unk_id in tokenizer.encode(text).numpy()


# RoBERTa, sections 3 and 4: what it changes of BERT's recipe.
def test_robertas_recipe_against_berts():
    bert, roberta = kbert.recipe("bert"), kbert.recipe("roberta")
    assert (bert.sentence_objective, roberta.sentence_objective) == ("next_sentence", None)
    assert roberta.segments == "full_sentences"
    assert roberta.phases == "512:1"
    # The base recipe of its code; the released models had 8,192 rows at a higher rate.
    assert (bert.batch_size, roberta.batch_size) == (256, 2048)
    assert roberta.learning_rate == 5 * bert.learning_rate
    assert (bert.beta_2, roberta.beta_2) == (0.999, 0.98)
    config = kbert.family("roberta-base")
    assert config.num_segments == 0
    assert config.layer_norm_epsilon == 1e-5
    encoder = kbert.Encoder(tiny_config(num_segments=config.num_segments))
    ids = np.ones((1, 4), "int32")
    with pytest.raises(ValueError, match="without segments"):
        encoder({"token_ids": ids, "segment_ids": ids})


# XLM-R, section 3: of a model for a hundred languages most is vocabulary.
def test_most_of_xlm_roberta_base_is_its_token_table():
    config = kbert.family("xlm-roberta-base")
    table = config.vocabulary_size * config.hidden_size
    assert round(table / parameters("xlm-roberta-base"), 2) == 0.69
    bert = kbert.family("bert-base-uncased")
    assert round(30_522 * bert.hidden_size / parameters("bert-base-uncased"), 2) == 0.21


# DistilBERT, section 3: half the layers, no segments, no pooler: 40 % fewer parameters.
def test_what_distilbert_leaves_out_of_bert():
    bert = kbert.describe("bert-base-uncased")
    half = 6 * block_parameters(bert.config)
    segments = 2 * bert.config.hidden_size
    left = bert.parameters - half - segments - bert.pooler_parameters
    assert parameters("distilbert-base-uncased") == left == 66_362_880
    assert round(1 - left / bert.parameters, 1) == 0.4


# BERT, multilingual.md: the cased model has 104 languages, the uncased one 102. Thai and Mongolian
# came with it: without accents a word of theirs loses letters, and they stand in one vocabulary.
@pytest.mark.parametrize(
    ("language", "word", "stripped"), [("Thai", "ที่นี่", "ทน"), ("Mongolian", "й", "и")]
)
def test_two_of_104_languages_need_their_accents(language, word, stripped):
    letters = sorted({*word, *stripped})
    vocabulary = [*SPECIAL_TOKENS, *letters, *("##" + letter for letter in letters)]
    cased = kbert.WordPieceTokenizer(vocabulary, lowercase=False)
    assert cased.decode(cased(word).numpy().tolist()) == word
    uncased = kbert.WordPieceTokenizer(vocabulary, lowercase=True)
    assert uncased.decode(uncased(word).numpy().tolist()) == stripped


# BERT, multilingual.md: 104 languages share one vocabulary of 119,547 pieces, and but for it the
# model is BERT-base: of its 178 M parameters more than half are the table of pieces.
def test_what_104_languages_cost():
    english, multilingual = (
        kbert.family(f"bert-base-{name}") for name in ("cased", "multilingual-cased")
    )
    assert multilingual == english.replace(vocabulary_size=119_547)
    more = parameters("bert-base-multilingual-cased") - parameters("bert-base-cased")
    assert more == (119_547 - 28_996) * 768 == 69_543_168
    assert parameters("bert-base-multilingual-cased") == 177_853_440
    assert round(119_547 * 768 / 177_853_440, 2) == 0.52
    assert token_dtype(multilingual.vocabulary_size) == "int32"  # 16 bits hold no id of all


# TinyBERT, abstract: 7.5 times smaller than its teacher, 13.3 % of it. The counts of the released
# weights give 7.6 and 13.1 %.
def test_tinybert_is_seven_times_smaller():
    tiny = parameters("huawei-noah/TinyBERT_General_4L_312D")
    assert parameters("bert-base-uncased") / tiny == pytest.approx(7.6, abs=0.05)
    assert round(tiny / parameters("bert-base-uncased"), 3) == 0.131


# ELECTRA, Table 1: small has 14 M parameters, base those of BERT-base (without its pooler).
def test_sizes_of_electra():
    bert = kbert.describe("bert-base-uncased")
    base = parameters("google/electra-base-discriminator")
    assert base == bert.parameters - bert.pooler_parameters == 108_891_648
    assert parameters("google/electra-small-discriminator") / 1e6 == pytest.approx(13.5, abs=0.05)


# ELECTRA, section 3.3: the discriminator learns from every token, masked LM from 15 % of them.
def test_electra_learns_from_all_tokens(corpus, tokenizer):
    rows = kbert.data.pretraining_dataset(
        corpus, tokenizer, batch_size=8, masking="independent", segments="consecutive"
    )
    batch = next(iter(rows))
    config = tiny_config(
        vocabulary_size=tokenizer.vocabulary_size,
        max_positions=128,
        pooler_activation=None,
    )
    task = kbert.tasks.ReplacedTokenDetection(
        kbert.Encoder(config), tokenizer, generator=generator_config(config, 0.5)
    )
    losses, _ = task.loss_terms(batch, training=False)
    tokens = batch["padding_mask"].numpy().sum()
    assert float(losses["weighted_rtd_loss"][1]) == tokens
    # The quota is 15 %, [CLS] and [SEP] counted; draws may fall on the same token twice.
    assert 0.10 < float(losses["mlm_loss"][1]) / tokens <= 0.155


# ELECTRA, appendix A: of what is drawn 85 % becomes [MASK], 15 % stays, nothing is random.
def test_electra_replaces_85_percent_with_mask(corpus, tokenizer):
    seen, masked = 0, 0
    for batch in batches(corpus, tokenizer, masking="independent", segments="consecutive"):
        now = batch["token_ids"][batch["chosen"]]
        was = batch["original"][batch["chosen"]]
        assert np.isin(now[now != was], [tokenizer.mask_id]).all()
        seen, masked = seen + len(now), masked + (now == tokenizer.mask_id).sum()
    assert seen > 3_000
    # Per draw 0.85; a token that is drawn twice has two chances.
    assert masked / seen == pytest.approx(0.86, abs=0.02)


# BERT, whole word masking (README, May 2019): all pieces of a word are predicted, or none.
@pytest.mark.parametrize(("masking", "whole"), [("whole_word", True), ("token", False)])
def test_words_are_masked_whole(corpus, tokenizer, masking, whole):
    torn = pieces = 0
    for batch in batches(corpus, tokenizer, masking=masking):
        goes_on = tokenizer.continuation[batch["original"][:, 1:]]
        # Truncation may have left the end of a word behind [CLS] or [SEP].
        goes_on &= ~np.isin(batch["original"][:, :-1], tokenizer.special_ids)
        torn += (goes_on & (batch["chosen"][:, 1:] != batch["chosen"][:, :-1])).sum()
        pieces += goes_on.sum()
    assert pieces > 5_000
    assert (torn == 0) if whole else (torn / pieces > 0.1)


# ALBERT, section 4.1: n-grams of up to three words, p(n) in proportion to 1 / n: 6/11, 3/11, 2/11.
def test_lengths_of_n_grams():
    lengths = draw_lengths(fold(0, 7), np.arange(50_000), NGRAM_WEIGHTS).numpy()
    shares = np.bincount(lengths, minlength=4)[1:] / len(lengths)
    np.testing.assert_allclose(shares, [6 / 11, 3 / 11, 2 / 11], atol=0.01)


# SpanBERT, section 3.1: geometric lengths with p = 0.2, at most 10; the mean is 3.8 words.
def test_lengths_of_spans():
    lengths = draw_lengths(fold(0, 7), np.arange(50_000), SPAN_WEIGHTS).numpy()
    assert lengths.max() == 10
    assert lengths.mean() == pytest.approx(3.8, abs=0.05)
    assert (lengths == 2).sum() / (lengths == 1).sum() == pytest.approx(0.8, abs=0.05)


# SpanBERT, section 3.1: a span is replaced as a whole, with [MASK], with random tokens, or not.
def test_spans_are_replaced_as_wholes(corpus, tokenizer):
    spans = mixed = 0
    for batch in batches(corpus, tokenizer, masking="span", segments="single"):
        used = batch["mask_weights"] > 0
        ends = (batch[name][used] for name in ("span_starts", "span_ends"))
        for r, start, end in set(zip(np.nonzero(used)[0], *ends, strict=True)):
            now = batch["token_ids"][r, start : end + 1]
            assert batch["chosen"][r, start : end + 1].all()
            mixed += 0 < (now == tokenizer.mask_id).sum() < len(now)
            spans += end > start
    assert spans > 300
    assert mixed / spans < 0.01  # a random token may be [MASK] itself


# ALBERT, section 3.1: both segments are of one text; half of the time they are swapped.
def test_sentence_order_swaps_half_of_the_pairs(corpus, tokenizer):
    labels = np.concatenate(
        [
            batch["sentence_order_labels"][batch["padding_mask"].any(1)]
            for batch in batches(corpus, tokenizer, segments="halves")
        ]
    )
    assert len(labels) > 200
    assert labels.mean() == pytest.approx(0.5, abs=0.1)


# XLNet, section 2.3: only the last tokens of an order are predicted, 1 / K of them; K = 6.
def test_xlnet_predicts_a_sixth_of_the_tokens(corpus, tokenizer):
    recipe = kbert.recipe("xlnet")
    assert recipe.masked_share == pytest.approx(1 / 6)
    options = {"masking": recipe.masking, "masked_share": recipe.masked_share}
    predicted = tokens = 0
    for batch in batches(corpus, tokenizer, segments="single", **options):
        full = batch["padding_mask"].all(1)
        predicted += batch["mask_weights"][full].sum()
        tokens += batch["padding_mask"][full].sum()
        assert not (batch["token_ids"] == tokenizer.mask_id).any()  # nothing is replaced
    assert predicted / tokens == pytest.approx(1 / 6, abs=0.01)


# TinyBERT, section 3.1: three kinds of losses: of the embeddings, of the layers (hidden states and
# attention), and of the predictions, which is the second stage of its fine-tuning.
def test_tinybert_has_three_kinds_of_losses():
    recipe = DISTILLATIONS["tinybert-task"]
    kinds = [{term.name for term in stage.terms} for stage in recipe.stages]
    assert kinds == [{"embeddings", "hidden_states", "attention_scores"}, {"soft_targets"}]
    general = DISTILLATIONS["tinybert-general"]
    assert {term.name for term in general.terms} == kinds[0]


# ALBERT, Table 1: 12, 18, 60 and 235 M parameters. The released xlarge and xxlarge are smaller.
@pytest.mark.parametrize(
    ("size", "millions"), [("base", 12), ("large", 18), ("xlarge", 59), ("xxlarge", 223)]
)
def test_sizes_of_albert(size, millions):
    assert round(parameters(f"albert-{size}-v2") / 1e6) == millions
