"""Exact facts from the lectures that kbert grew from, as checks on the library.

Each test names the slide it comes from; where a slide is wrong, the test holds the right value
and says so.
"""

import collections
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.tokenizers import SPECIAL_TOKENS
from kbert.tokenizers.packing import build_inputs


@pytest.fixture(scope="module")
def corpus(uncased, tmp_path_factory) -> Path:
    """A hundred short documents, prepared as shards: enough rows for shares within a percent."""
    folder = tmp_path_factory.mktemp("lectures")
    nouns = "fox river house queen city moon garden letter train window".split()
    verbs = "found saw painted carried followed forgot opened crossed loved left".split()
    documents = []
    for i in range(100):
        sentences = [
            f"The {nouns[(i + j) % 10]} {verbs[(i * j + 3) % 10]} the {nouns[(i * 7 + j) % 10]}"
            f" on day {i * 100 + j}."
            for j in range(60)
        ]
        documents.append("\n".join(sentences))
    (folder / "text.txt").write_text("\n\n".join(documents))
    kbert.data.prepare_corpus(
        [str(folder / "text.txt")], folder / "shards", uncased, held_out_share=0.0
    )
    return folder / "shards"


def specials(tokenizer) -> dict[str, int]:
    return {name: getattr(tokenizer, name) for name in ("cls_id", "sep_id", "pad_id")}


# BERT, slide "Tokenization": the running example and its ids.
def test_ids_of_the_running_example(uncased):
    ids = uncased.encode(["a visually stunning rumination on love"])
    packed = build_inputs(ids, **specials(uncased), max_length=512, multiple=1)
    expected = [101, 1037, 17453, 14726, 19379, 12758, 2006, 2293, 102]
    assert packed["token_ids"].numpy().tolist() == [expected]


# BERT, slide "WordPiece": an unseen word falls into known pieces, the later ones marked ##.
def test_pieces_of_an_unseen_word(uncased):
    ids = uncased.encode(["flightless"]).to_list()[0]
    assert [uncased.id_to_token(i) for i in ids] == ["flight", "##less"]


# BERT, slide "WordPiece": playing is play + ##ing, played is play + ##ed. So they are cut where the
# vocabulary lacks the words; BERT's own has them, and keeps them whole.
def test_pieces_of_playing_and_played(uncased):
    words, pieces = ["playing", "played"], [["play", "##ing"], ["play", "##ed"]]
    names = uncased.vocabulary
    assert [[names[i] for i in ids] for ids in uncased(words).to_list()] == [[w] for w in words]
    smaller = kbert.WordPieceTokenizer([name for name in names if name not in words])
    names = smaller.vocabulary
    assert [[names[i] for i in ids] for ids in smaller(words).to_list()] == pieces


# BERT, slide "Padding": ten tokens in a row of 512 leave 512 - 10 = 502 places of padding.
def test_ten_tokens_leave_502_of_512_to_padding(uncased):
    ids = uncased(["a visually stunning rumination on love ."])
    packed = build_inputs(ids, **specials(uncased), max_length=512, multiple=512)
    row, mask = packed["token_ids"].numpy()[0], packed["padding_mask"].numpy()[0]
    assert (mask.sum(), (mask == 0).sum()) == (10, 502)
    assert (row[10:] == 0).all()
    assert (row[:10] != 0).all()


# BERT, slide "Input representation": two sentences, their segment ids and padding mask.
def test_segments_and_padding_of_a_pair(uncased):
    first, second = uncased.encode(["I have a pen"]), uncased.encode(["The pen is red"])
    packed = build_inputs(first, second, **specials(uncased), max_length=512, multiple=16)
    assert packed["segment_ids"].numpy()[0, :11].tolist() == [0] * 6 + [1] * 5
    assert packed["padding_mask"].numpy()[0].tolist() == [1] * 11 + [0] * 5


# BERT, slide "Input representation": each piece is the sum of three learned vectors.
# A LayerNorm follows, which the slide leaves out.
def test_embedding_is_the_sum_of_token_segment_and_position():
    encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=50))
    tables = {
        next(iter(w.shape)): keras.ops.convert_to_numpy(w)
        for w in encoder.trainable_variables
        if w.ndim == 2 and "embedding" in w.path
    }
    assert sorted(tables) == [2, 50, 512]  # segments, tokens, positions: all trained
    token_ids, segment_ids = np.array([[7, 49, 7, 3]]), np.array([[0, 0, 1, 1]])
    total = tables[50][token_ids] + tables[2][segment_ids] + tables[512][:4]
    centred = total - total.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)  # gamma 1, beta 0
    inputs = {"token_ids": token_ids, "segment_ids": segment_ids}
    found = encoder(inputs, return_hidden_states=True)["hidden_states"][0]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(found), expected, atol=1e-5)


# BERT, slide "Limits": positions are learned, so 512 of them leave 510 for one text.
def test_512_positions_leave_510_pieces(uncased):
    config = kbert.family("bert-base-uncased")
    ids = uncased.encode(["love " * 1000])
    packed = build_inputs(ids, **specials(uncased), max_length=config.max_positions)
    ids = packed["token_ids"].numpy()[0]
    assert config.max_positions == 512
    assert ids.shape == (512,)
    assert (ids == uncased.encode(["love"]).to_list()[0][0]).sum() == 510


# BERT, slide "Model sizes": base and large. The slides round to 110 M and 340 M; the counts of the
# released checkpoints are these (the 340 M stands for 335 M with pooler).
def test_sizes_of_base_and_large():
    base, large = kbert.family("bert-base-uncased"), kbert.family("bert-large-uncased")
    assert (base.num_layers, base.hidden_size, base.num_heads) == (12, 768, 12)
    assert (large.num_layers, large.hidden_size, large.num_heads) == (24, 1024, 16)
    assert kbert.describe("bert-base-uncased").parameters == 109_482_240
    assert kbert.describe("bert-large-uncased").parameters == 335_141_888


# The same with heads: the masked-LM head adds a dense layer, a LayerNorm and a bias for each entry,
# the next-sentence head two columns. BertForMaskedLM has no pooler.
def test_sizes_of_base_with_its_heads():
    config = kbert.family("bert-base-uncased")
    width = config.hidden_size
    masked_lm = width * width + width + 2 * width + config.vocabulary_size
    whole = kbert.describe(config).parameters
    without_pooler = kbert.describe(config.replace(pooler_activation=None)).parameters
    assert whole - without_pooler == width * width + width
    assert without_pooler + masked_lm == 109_514_298
    assert whole + masked_lm + 2 * width + 2 == 110_106_428


def test_the_heads_weights_are_those_counted(uncased):
    config = kbert.family("bert-tiny")
    encoder = kbert.Encoder(config)
    width = config.hidden_size
    heads = width * width + width + 2 * width + config.vocabulary_size + 2 * width + 2
    task = kbert.tasks.Pretraining(encoder, uncased)
    counted = sum(np.prod(w.shape) for w in task.trainable_variables)
    assert counted == kbert.describe(config).parameters + heads


# BERT, section 3.1: the model sees 15 % of the pieces masked; [CLS] and [SEP] count, but are never
# chosen: of a full row of 128 that is 19.
def test_nineteen_of_128_are_chosen_and_none_is_special(uncased, corpus):
    rows = kbert.data.pretraining_dataset(corpus, uncased, sequence_length=128, batch_size=64)
    batch = next(rows.as_numpy_iterator())
    full = batch["padding_mask"].sum(1) == 128
    assert full.sum() > 20
    assert set(batch["mask_weights"].sum(1)[full]) == {19}
    assert not np.isin(batch["mask_ids"][batch["mask_weights"] > 0], uncased.special_ids).any()


# BERT, slide "Memory": weights of BERT-large in float32.
def test_large_takes_1_34_gigabytes():
    assert round(kbert.describe("bert-large-uncased").parameters * 4 / 1e9, 2) == 1.34


# ALBERT, slide "Factorised embeddings": V x H against V x E + E x H.
def test_factorised_embeddings_are_fifteen_times_smaller():
    whole = kbert.EncoderConfig(
        vocabulary_size=30_000,
        hidden_size=2048,
        num_layers=1,
        num_heads=16,
        intermediate_size=8192,
        max_positions=1,
        num_segments=0,
    )
    small = kbert.describe(whole.replace(embedding_size=128)).parameters
    saved = kbert.describe(whole).parameters - small
    assert 30_000 * 2048 == 61_440_000
    table, projection = 30_000 * 128, 128 * 2048
    assert round((table + projection) / 1e6, 2) == 4.10
    # Position row, LayerNorm and the projection's bias follow the embedding's width as well.
    widths = 3 * (2048 - 128)
    assert saved == 61_440_000 - table - projection - 2048 + widths


# BERT, slide "Masked language model": 15 % of the pieces, of which 80/10/10 are replaced by [MASK],
# by any piece, or kept: 12, 1.5 and 1.5 % of all. The slide counts pieces of text; the original
# code counts [CLS] and [SEP] in the quota, so shares are of the whole length.
def test_shares_of_masked_random_and_kept(uncased, corpus):
    rows = kbert.data.pretraining_dataset(
        corpus, uncased, sequence_length=128, batch_size=64, epochs=4
    )
    masked = random = kept = total = 0
    for batch in rows.as_numpy_iterator():
        chosen = batch["mask_weights"] > 0
        now = np.take_along_axis(batch["token_ids"], batch["mask_positions"], 1)[chosen]
        was = batch["mask_ids"][chosen]
        masked += (now == uncased.mask_id).sum()
        kept += (now == was).sum()
        random += ((now != was) & (now != uncased.mask_id)).sum()
        total += batch["padding_mask"].sum()
    assert total > 200_000
    assert masked / total == pytest.approx(0.12, abs=0.002)
    assert random / total == pytest.approx(0.015, abs=0.001)
    assert kept / total == pytest.approx(0.015, abs=0.001)


# BERT, slide "Next sentence prediction": half the pairs are real. Label 1 is the *random* one
# (IsNext = 0), as the original code writes it; some slides have it the other way round.
def test_label_one_is_the_random_next_sentence(uncased, corpus):
    rows = kbert.data.pretraining_dataset(
        corpus, uncased, sequence_length=128, batch_size=64, epochs=1
    )
    documents = [f" {' '.join(map(str, tokens))} " for tokens in whole_documents(corpus)]
    agree = seen = 0
    for batch in rows.as_numpy_iterator():
        ids = batch["token_ids"].copy()
        chosen = batch["mask_weights"] > 0
        row, _ = np.nonzero(chosen)
        ids[row, batch["mask_positions"][chosen]] = batch["mask_ids"][chosen]
        for tokens, segment, length, label in zip(
            ids,
            batch["segment_ids"],
            batch["padding_mask"].sum(1),
            batch["next_sentence_labels"],
            strict=True,
        ):
            if length == 0:
                continue  # fills the last batch up
            start_b = int(np.argmax(segment))
            segments = tokens[1 : start_b - 1], tokens[start_b : length - 1]
            if min(map(len, segments)) < 15:
                continue  # a few pieces stand in many documents
            a, b = (f" {' '.join(map(str, segment))} " for segment in segments)
            agree += any(a in text and b in text for text in documents) == (label == 0)
            seen += 1
    assert seen > 200
    assert agree == seen


def whole_documents(folder: Path) -> list[np.ndarray]:
    """Token ids of every training document, in shard order."""
    documents = []
    for shard in kbert.data.read_manifest(folder).splits["train"].shards:
        for record in tf.data.TFRecordDataset(str(folder / shard.file)):
            feature = tf.train.Example.FromString(record.numpy()).features.feature
            tokens, sentences, counts = (
                np.frombuffer(feature[name].bytes_list.value[0], dtype)
                for name, dtype in (("tokens", "<u2"), ("sentences", "<i4"), ("documents", "<i4"))
            )
            sentence_ends = np.cumsum(sentences)
            ends = sentence_ends[np.cumsum(counts) - 1]
            documents += np.split(tokens, ends[:-1])
    return documents


# RoBERTa, slide "Static and dynamic masking": ten static copies over 40 epochs show each mask four
# times; dynamic masks never repeat.
@pytest.mark.parametrize(("static_masks", "times"), [(10, 4), (None, 1)])
def test_how_often_a_mask_is_seen_in_40_epochs(uncased, tmp_path, static_masks, times):
    sentences = [f"The {n}th fox saw the queen and her garden at {n * n}." for n in range(80)]
    documents = ["\n".join(sentences[i : i + 20]) for i in range(0, 80, 20)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    rows = kbert.data.pretraining_dataset(
        *(str(tmp_path / "text.txt"), uncased),
        batch_size=64,
        epochs=40,
        static_masks=static_masks,
        cache_dir=tmp_path,
    )
    seen = collections.Counter()
    for batch in rows.as_numpy_iterator():
        for row in np.flatnonzero(batch["padding_mask"].any(1)):  # others fill the last batch up
            seen[batch["token_ids"][row].tobytes() + batch["mask_positions"][row].tobytes()] += 1
    assert seen.total() > 40 * len(documents)
    assert set(seen.values()) == {times}


# BERT, slide "Masked language model": predictions per sequence. 15 % of 128 is 19, of 512 is 77;
# the released recipe reserves 20 and 80 places.
@pytest.mark.parametrize(("length", "places"), [(128, 20), (512, 80)])
def test_places_for_predictions(uncased, corpus, length, places):
    rows = kbert.data.pretraining_dataset(corpus, uncased, sequence_length=length, batch_size=4)
    batch = next(rows.as_numpy_iterator())
    assert batch["mask_positions"].shape == (4, places)
    assert batch["mask_weights"].sum(1).max() <= round(0.15 * length)


# BERT, slide "Pretraining heads": the output table is the input table; the head adds a dense layer,
# a LayerNorm and one bias per vocabulary entry.
def test_masked_lm_head_shares_the_embedding_table():
    config = kbert.family("bert-tiny").replace(vocabulary_size=50)
    encoder = kbert.Encoder(config)
    head = kbert.heads.MaskedLMHead(config, encoder.token_embedding)
    assert sum(np.prod(w.shape) for w in head.trainable_variables) == 128 * 128 + 3 * 128 + 50


# BERT, slide "Why both directions": "bought a ___ of shoes": a pair with 80 %, a cart with 20 %. In
# a softmax of two these are logits that are log 4 apart.
@pytest.mark.tensorflow
def test_a_pair_of_shoes_is_four_times_as_likely_as_a_cart():
    size = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}
    words = ["she", "bought", "a", "of", "shoes", "pair", "cart"]
    tokenizer = kbert.WordPieceTokenizer([*SPECIAL_TOKENS, *words])
    config = kbert.EncoderConfig(vocabulary_size=tokenizer.vocabulary_size, **size)
    task = kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer)
    for weight in task.masked_lm.norm.weights:
        weight.assign(np.zeros(weight.shape))  # the logits are the bias
    logits = np.full(tokenizer.vocabulary_size, -1e4)
    logits[tokenizer.encode(["pair"]).flat_values] = 1 + np.log(4)
    logits[tokenizer.encode(["cart"]).flat_values] = 1
    task.masked_lm.bias.assign(logits)
    answer = task.predict("she bought a [MASK] of shoes", top_k=2)[0]
    assert answer["tokens"] == [["pair", "cart"]]
    assert answer["probabilities"][0] == pytest.approx([0.8, 0.2])


# BERT, section A.2: a million steps of 256 sequences of 512 tokens over 3.3 billion words are "40
# epochs" or so. Nine tenths of the steps have 128 tokens: what is really read is 13 epochs.
def test_a_million_steps_are_about_40_epochs():
    bert, words = kbert.recipe("bert"), 3.3e9
    assert (bert.steps, bert.batch_size, bert.phases) == (1_000_000, 256, "128:0.9,512:0.1")
    assert bert.batch_size * 512 == 131_072  # the paper says 128,000 tokens
    assert bert.steps * bert.batch_size * 512 / words == pytest.approx(40, abs=0.5)
    phases = [phase.split(":") for phase in bert.phases.split(",")]
    tokens = sum(int(length) * float(share) for length, share in phases)
    assert bert.steps * bert.batch_size * tokens / words == pytest.approx(13, abs=0.5)


# BERT, slide "Two objectives": the loss of pretraining is the sum of both means.
@pytest.mark.tensorflow
def test_the_loss_is_the_sum_of_both_objectives(uncased, corpus):
    config = kbert.family("bert-tiny").replace(num_layers=1, hidden_size=16, num_heads=2)
    task = kbert.tasks.Pretraining(kbert.Encoder(config), uncased)
    task.compile(kbert.training.AdamW(1e-4))
    rows = kbert.data.pretraining_dataset(corpus, uncased, sequence_length=32, batch_size=8)
    values = task.evaluate(rows.take(2), verbose=0, return_dict=True)
    assert values["mlm_loss"] == pytest.approx(np.log(30_522), rel=0.05)  # both are untrained
    assert values["nsp_loss"] == pytest.approx(np.log(2), rel=0.05)
    assert values["loss"] == pytest.approx(values["mlm_loss"] + values["nsp_loss"], rel=1e-6)


# BERT, README of May 2019: "pro ##ba ##bility" is masked as a whole, or not at all.
@pytest.mark.parametrize(("masking", "whole"), [("whole_word", True), ("token", False)])
def test_probability_is_masked_whole(tmp_path, masking, whole):
    words = "the high low of a day is our".split()
    tokenizer = kbert.WordPieceTokenizer(
        [*SPECIAL_TOKENS, *words, ".", "pro", "##ba", "##bility"], lowercase=True
    )
    assert [tokenizer.id_to_token(i) for i in tokenizer.encode(["probability"]).to_list()[0]] == [
        *("pro", "##ba", "##bility")
    ]
    rng = np.random.default_rng(0)
    sentences = [" ".join(rng.permutation([*words, "probability"])) + "." for _ in range(2_000)]
    (tmp_path / "text.txt").write_text(
        "\n\n".join(map("\n".join, np.split(np.array(sentences), 50)))
    )
    rows = kbert.data.pretraining_dataset(
        [str(tmp_path / "text.txt")], tokenizer, batch_size=32, epochs=1, masking=masking
    )
    first, counts = tokenizer.token_to_id("pro"), collections.Counter()
    for batch in rows.as_numpy_iterator():
        was, chosen = batch["token_ids"].copy(), np.zeros(batch["token_ids"].shape, bool)
        row, column = np.nonzero(batch["mask_weights"])
        position = batch["mask_positions"][row, column]
        was[row, position] = batch["mask_ids"][row, column]
        chosen[row, position] = True
        starts = np.nonzero((was[:, :-2] == first) & (was[:, 2:] == first + 2))
        counts.update(sum(chosen[starts[0], starts[1] + i].astype(int) for i in range(3)).tolist())
    assert counts[0] > counts[3]
    assert (set(counts) == {0, 3}) if whole else {1, 2} <= set(counts)
