"""The stream of denoising batches: shapes, what an epoch has, where it resumes, hosts, errors."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

from kbert.core import late
from kbert.data.corpus import manifest
from kbert.data.corpus.blocks import BlockReader
from kbert.data.denoising import dataset as denoising
from kbert.data.denoising.dataset import denoising_dataset
from kbert.data.denoising.settings import DenoisingSettings
from kbert.data.denoising.spans import SpanCorruption
from tests.data.denoising.plain import with_sentinels

PAD, CLS, SEP, MASK = 0, 2, 3, 4
# Every token of the text is on one of the sides.
NOISES = {
    "bart": "bart",
    "t5": "t5",
    "mass": "mass",
    "pegasus": "pegasus:max_targets=20,selection=random",
    "prefix_lm": "prefix_lm",
}
KINDS = list(NOISES)
# The other kinds share the code that some tests are about.
SOME_KINDS = ["bart", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    return with_sentinels(tokenizer_of(6000), 40)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, write_corpus, tokenizer):
    """40 documents of about 2,500 tokens, each there once, in some 20 blocks; their bounds."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("corpus")
    documents = [rng.integers(1, 16, rng.integers(1, 15)).tolist() for _ in range(40)]
    bounds, sentence_bounds = write_corpus(folder, documents, tokenizer, shards=3, block_tokens=120)
    return folder, 5 + bounds, 5 + sentence_bounds


def defaults(noise, **changes):
    noise = NOISES.get(noise, noise) if isinstance(noise, str) else noise
    usual = {"sequence_length": 20, "batch_size": 6, "seed": 3, "window_blocks": 5}
    return {"noise": noise, **usual, **changes}


def small(folder, tokenizer, noise, **changes):
    return denoising_dataset(folder, tokenizer, **defaults(noise, **changes))


def listed(folder, tokenizer, noise, **changes):
    return list(small(folder, tokenizer, noise, **changes).as_numpy_iterator())


@pytest.fixture(scope="module")
def epochs(corpus, tokenizer):
    """Kind of noise -> the batches of two epochs."""
    return {kind: listed(corpus[0], tokenizer, kind, epochs=2) for kind in KINDS}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def rows_of(batches):
    """(source, targets, position of the first target) of each row with text, without padding."""
    for batch in batches:
        for n in np.flatnonzero(batch["weights"].any(1)):
            yield (
                batch["encoder_token_ids"][n][batch["encoder_padding_mask"][n] > 0].tolist(),
                batch["targets"][n][batch["weights"][n] > 0].tolist(),
                int(batch["decoder_position_ids"][n, 0]) if "decoder_position_ids" in batch else 0,
            )


def test_every_kind_is_tested_here():
    assert set(KINDS) == set(late.TABLE["noise"])


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_and_types_are_static(corpus, tokenizer, kind):
    dataset = small(corpus[0], tokenizer, kind, num_hosts=2)
    targets = DenoisingSettings(**defaults(kind)).target_length
    expected = {
        "encoder_token_ids": ((3, 20), "int32"),
        "encoder_padding_mask": ((3, 20), "int32"),
        "decoder_token_ids": ((3, targets), "int32"),
        "decoder_padding_mask": ((3, targets), "int32"),
        "targets": ((3, targets), "int32"),
        "weights": ((3, targets), "float32"),
        "position": ((3, 3), "int32"),
    }
    if kind == "mass":
        expected["decoder_position_ids"] = ((3, targets), "int32")
    spec = dataset.element_spec
    assert {name: (tuple(x.shape), x.dtype.name) for name, x in spec.items()} == expected


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_masked_and_targets_are_shifted(epochs, kind):
    for batch in epochs[kind]:
        for side in ("encoder", "decoder"):
            mask = batch[f"{side}_padding_mask"]
            np.testing.assert_array_equal(mask, np.sort(mask, 1)[:, ::-1])
            assert (batch[f"{side}_token_ids"][mask == 0] == PAD).all()
            assert (mask[:, 0] == 1).all()
        used = batch["weights"] > 0
        has_text = used.any(1)
        np.testing.assert_array_equal(used[has_text], batch["decoder_padding_mask"][has_text] > 0)
        later = batch["decoder_padding_mask"][:, 1:] > 0
        np.testing.assert_array_equal(
            batch["decoder_token_ids"][:, 1:][later], batch["targets"][:, :-1][later]
        )
        assert (batch["targets"][batch["decoder_padding_mask"] == 0] == PAD).all()


def bart_text(source, target, _):
    assert (source[0], source[-1], target[0], target[-1]) == (CLS, SEP, CLS, SEP)
    return target[1:-1]


def t5_text(source, target, _):
    spans, at = {}, None
    for token in target[:-1]:
        if token >= 5960:
            at = spans.setdefault(token, [])
        else:
            at.append(token)
    return [x for token in source[:-1] for x in spans.get(token, [token])]


def mass_text(source, target, first):
    text = source[1:-1]
    text[first : first + len(target)] = target
    return text


def other_text(source, target, _):
    return [token for token in source + target if token not in (MASK, SEP)]


TEXT_OF = {"bart": bart_text, "t5": t5_text, "mass": mass_text}


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_is_in_one_row_an_epoch(corpus, epochs, kind):
    seen = collections.Counter()
    for row in rows_of(epochs[kind]):
        seen.update(TEXT_OF.get(kind, other_text)(*row))
    assert seen == dict.fromkeys(range(5, corpus[1][-1]), 2)


@pytest.mark.parametrize("kind", ["t5", "mass"])
def test_a_row_is_contiguous_text(corpus, epochs, kind):
    ends = set((corpus[1][1:] - 1).tolist())
    texts = [TEXT_OF[kind](*row) for row in rows_of(epochs[kind])]
    for text in texts:
        for one, other in itertools.pairwise(text):
            assert other == one + 1 or one in ends
    joined = sum(bool(ends & set(text[:-1])) for text in texts)
    # T5 joins documents in full rows; the others have whole sentences of one document.
    if kind == "t5":
        full = sum(len(row[0]) == 20 for row in rows_of(epochs[kind]))
        assert full > 0.9 * len(texts)
        assert joined > 0.1 * len(texts)
    else:
        starts = set(corpus[2].tolist())
        assert not joined
        assert all(text[0] in starts and text[-1] + 1 in starts for text in texts)


@pytest.mark.parametrize("segments", ["doc_sentences", "joined"])
def test_sentences_of_the_shards_are_permuted(corpus, tokenizer, segments):
    batches = listed(
        corpus[0], tokenizer, "bart:masking=none", epochs=1, segments=segments, sequence_length=40
    )
    starts, moved = set(corpus[2].tolist()), 0
    for source, target, _ in rows_of(batches):
        sentences = []
        for token in target[1:-1]:
            if token in starts or not sentences:
                sentences.append([])
            sentences[-1].append(token)
        # Each token is there once: so the first tokens tell the sentences of the source.
        by_first = {sentence[0]: sentence for sentence in sentences}
        text, at = source[1:-1], 0
        while at < len(text):
            sentence = by_first.pop(text[at])
            assert text[at : at + len(sentence)] == sentence
            at += len(sentence)
        assert not by_first
        moved += source != target
    assert moved > 0.6 * sum(1 for _ in rows_of(batches))


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_differ(epochs, kind):
    batches = epochs[kind]
    first, second = (
        {tuple(row[0]) for row in rows_of(batches[start:end])}
        for start, end in ((0, len(batches) // 2), (len(batches) // 2 + 1, None))
    )
    # Rows of few sentences may have the same gaps again.
    assert len(first & second) < (0.8 if kind == "pegasus" else 0.1) * len(first)


def test_no_row_has_the_noise_of_another_window_or_epoch(tmp_path, write_corpus, tokenizer):
    write_corpus(tmp_path, [[18]] * 40, tokenizer, shards=1)  # windows of about 6 rows
    noise = "bart:masking=tokens,permuted_share=0"
    batches = listed(tmp_path, tokenizer, noise, epochs=2, window_blocks=2)
    # 6 of 18 tokens are masked: of 80 draws among 18,564, the expected number of equal pairs is
    # 0.2.
    masks = [tuple(np.equal(source, MASK)) for source, _, _ in rows_of(batches)]
    assert len(masks) == 80
    assert len(set(masks)) > 77


def test_seeds_differ(corpus, tokenizer, epochs):
    other = next(small(corpus[0], tokenizer, "t5", seed=4).take(1).as_numpy_iterator())
    assert not np.array_equal(other["encoder_token_ids"], epochs["t5"][0]["encoder_token_ids"])


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_rows_do_not_depend_on_the_batch_size_and_threads(corpus, tokenizer, epochs, kind):
    other = listed(corpus[0], tokenizer, kind, epochs=2, batch_size=17, threads=2)
    for name in epochs[kind][0].keys() - {"position"}:
        one, two = (np.concatenate([b[name] for b in x]) for x in (epochs[kind], other))
        count = sum(1 for _ in rows_of(epochs[kind]))
        np.testing.assert_array_equal(one[:count], two[:count], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5", "mass"])
def test_hosts_together_make_the_batches_of_one(corpus, tokenizer, epochs, kind):
    shares = [
        list(
            small(corpus[0], tokenizer, kind, epochs=2, num_hosts=2, host_index=host)
            .take(5)
            .as_numpy_iterator()
        )
        for host in range(2)
    ]
    for batch, *parts in zip(epochs[kind][:5], *shares, strict=True):
        assert_equal({name: np.concatenate([p[name] for p in parts]) for name in batch}, batch)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_resuming_is_bit_equal(corpus, tokenizer, epochs, kind):
    batches = epochs[kind]
    settings = DenoisingSettings(**defaults(kind, epochs=2))
    reader = BlockReader.from_manifest(
        manifest.read_manifest(corpus[0]), "train", settings.seed, settings.window_blocks
    )
    numbers = np.array([0, 3, len(batches) // 2, len(batches) - 4])
    starts = np.stack([batches[n]["position"][0] for n in numbers]).astype(np.int64)
    assert starts[-1, 0] == 1

    def resume(start):
        return denoising.batches(settings, reader, tokenizer, tf.unstack(start)).take(3)

    # In one pipeline, to trace it once: three batches from each start.
    resumed = tf.data.Dataset.from_tensor_slices(starts).flat_map(resume)
    for n, found in enumerate(resumed.as_numpy_iterator()):
        assert_equal(found, batches[numbers[n // 3] + 1 + n % 3])
    assert n == 11


def test_resuming_through_the_front_door(corpus, tokenizer, epochs):
    batches = epochs["t5"]
    resumed = listed(corpus[0], tokenizer, "t5", epochs=2, start=batches[-5]["position"])
    assert len(resumed) == 4
    for expected, found in zip(batches[-4:], resumed, strict=True):
        assert_equal(found, expected)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_empty_rows_fill_the_last_batch(tmp_path, write_corpus, tokenizer, kind):
    write_corpus(tmp_path, [[3, 2], [4]], tokenizer, shards=1)
    (batch,) = listed(tmp_path, tokenizer, kind, batch_size=6, epochs=1)
    is_empty = ~batch["weights"].any(1)
    assert 4 <= is_empty.sum() < 6
    assert set(batch["encoder_token_ids"][is_empty].ravel().tolist()) <= {PAD, CLS, SEP}
    assert (batch["encoder_padding_mask"][is_empty].sum(1) >= 1).all()
    assert (batch["decoder_padding_mask"][:, 0] == 1).all()


def test_the_start_of_the_decoder_is_that_of_the_noise_or_chosen(corpus, tokenizer, epochs):
    usual = {"bart": SEP, "t5": PAD, "pegasus": PAD, "prefix_lm": PAD}
    for kind, token in usual.items():
        assert set(epochs[kind][0]["decoder_token_ids"][:, 0]) == {token}
    dataset = small(corpus[0], tokenizer, "bart:targets_begin=false", decoder_start="cls")
    batch = next(dataset.take(1).as_numpy_iterator())
    assert set(batch["decoder_token_ids"][:, 0]) == {CLS}
    assert not (batch["targets"] == CLS).any()


def test_a_start_token_for_mass_is_refused(corpus, tokenizer):
    with pytest.raises(ValueError, match=r"noise='mass' begins .*decoder_start='cls'"):
        small(corpus[0], tokenizer, "mass", decoder_start="cls")


def test_a_start_that_the_tokenizer_lacks_is_refused(corpus, tokenizer_of):
    other = tokenizer_of(6000)
    other.cls_id = None
    with pytest.raises(ValueError, match=r"decoder_start='cls' requires .*Received: a .* without"):
        small(corpus[0], other, "prefix_lm", decoder_start="cls")


def test_a_noise_may_be_an_object(corpus, tokenizer, epochs):
    dataset = small(corpus[0], tokenizer, SpanCorruption())
    assert_equal(next(dataset.take(1).as_numpy_iterator()), epochs["t5"][0])


def test_settings_out_of_range_are_refused(corpus, tokenizer):
    for changes, message in [
        ({"sequence_length": 7}, "`sequence_length` must be .* from 8 to 32,768. Received: 7"),
        ({"noise": "bert"}, "A noise must be one of .*t5.*Received: 'bert'"),
        ({"noise": "t5:masked_share=2"}, "`masked_share` must be .* below 1. Received: 2"),
        ({"segments": "pairs"}, "`segments` must be one of joined, single.*Received: 'pairs'"),
        ({"decoder_start": "mask"}, "`decoder_start` must be one of cls, sep, pad"),
        ({"batch_size": 7, "num_hosts": 2}, "`batch_size` counts .*batch_size=7, num_hosts=2"),
        ({"start": (0, 99, 0)}, "`start` must be .*Received: start=.0, 99, 0."),
    ]:
        with pytest.raises(ValueError, match=message):
            small(corpus[0], tokenizer, **{"noise": "t5", **changes})
    with pytest.raises(TypeError, match=r"noise='t5' has no such argument.*Received: 'share'"):
        small(corpus[0], tokenizer, "t5:share=0.2")
    with pytest.raises(TypeError, match="denoising_dataset has no such argument"):
        small(corpus[0], tokenizer, "t5", masked_share=0.2)


def test_another_tokenizer_is_refused(corpus, tokenizer_of):
    other = with_sentinels(tokenizer_of(6000, checksum="1" * 64), 40)
    with pytest.raises(ValueError, match=f"The shards in {corpus[0]} were written with another"):
        small(corpus[0], other, "t5")


@pytest.mark.slow
def test_large_vocabularies(tmp_path, write_corpus, tokenizer_of):
    large = with_sentinels(tokenizer_of(70_000), 200)
    bounds, _ = write_corpus(tmp_path, [[1000] * 69], large)
    batches = listed(tmp_path, large, "t5", epochs=1, sequence_length=2000)
    text = [x for source, target, _ in rows_of(batches) for x in source + target]
    assert set(text) - {SEP} - set(range(69_800, 70_000)) == set(range(5, 5 + bounds[-1]))
