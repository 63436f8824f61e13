"""Several corpora read as one: shares, orders, resume, refusals."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import kbert
from kbert.data.corpus import records
from kbert.data.corpus.mixture import Mixture, _quotas
from kbert.data.corpus.shares import parse_folders
from kbert.data.pretraining.causal import causal_dataset
from kbert.data.pretraining.dataset import pretraining_dataset

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = {"a": 30, "b": 9, "c": 5}  # blocks of one document each


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    return tokenizer_of(2000)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, write_corpus, tokenizer):
    """Three corpora of blocks of 40 tokens, documents of one, two and four sentences."""
    found = {}
    for number, (name, blocks) in enumerate(SIZES.items()):
        path = tmp_path_factory.mktemp(name)
        write_corpus(path, [[40 >> number] * (1 << number)] * blocks, tokenizer, shards=2)
        found[name] = str(path)
    return found


def blocks_of(mixture, epochs, seed=3, window_blocks=8):
    """Of each epoch (corpus, first token) of each block, as they come."""
    reader = mixture.reader("train", seed, window_blocks)
    found = [[] for _ in range(epochs)]
    for epoch, _, serialized in reader.windows_from(0, 0, epochs=epochs):
        blocks = {name: x.numpy() for name, x in records.parse_blocks(serialized).items()}
        assert len(blocks["documents"]) == len(serialized)
        firsts = blocks["tokens"].reshape(-1, 40)[:, 0]
        found[int(epoch)] += zip((blocks["documents"] // 2).tolist(), firsts.tolist(), strict=True)
    return found


def test_an_epoch_holds_the_shares_and_no_block_comes_again_too_soon(folders):
    mixture = Mixture.read({folders["a"]: 2, folders["b"]: 1, folders["c"]: 1})
    assert mixture.shares == (0.5, 0.25, 0.25)
    given_so_far = collections.Counter()
    for epoch, found in enumerate(blocks_of(mixture, 5)):
        assert collections.Counter(corpus for corpus, _ in found) == {0: 22, 1: 11, 2: 11}
        given_so_far.update(found)
        for corpus, blocks in enumerate(SIZES.values()):
            counts = [n for (c, _), n in given_so_far.items() if c == corpus]
            total = 22 if corpus == 0 else 11
            least = (epoch + 1) * total // blocks
            assert sum(counts) == (epoch + 1) * total
            # Each block as often as every other, give or take one.
            assert set(counts) <= {least, least + 1}
            assert least == 0 or len(counts) == blocks


def test_corpora_are_mixed_throughout_and_every_epoch_anew(folders):
    mixture = Mixture.read([folders["a"], folders["b"]])
    epochs = blocks_of(mixture, 2)
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])  # by size: each block once an epoch
    assert len(set(epochs[0])) == 39
    halves = [sum(corpus for corpus, _ in part) for part in np.array_split(epochs[0], 3)]
    assert min(halves) >= 1
    assert blocks_of(mixture, 1) == epochs[:1] == blocks_of(mixture, 1, window_blocks=39)
    assert blocks_of(mixture, 1, seed=4) != epochs[:1]


def test_the_temperature_lifts_small_corpora(folders):
    names = [folders[name] for name in SIZES]
    tokens = np.array(list(SIZES.values())) * 40.0
    for temperature in (1.0, 0.7, 0.0):
        weights = tokens**temperature
        expected = weights / weights.sum()
        np.testing.assert_allclose(Mixture.read(names, temperature).shares, expected, rtol=1e-12)


@given(
    st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=6),
    st.integers(6, 10_000),
)
@settings(max_examples=300, deadline=None)
def test_quotas_are_the_shares_in_whole_numbers(weights, places):
    shares = np.array(weights) / np.sum(weights)
    quotas = _quotas(tuple(shares), places)
    assert quotas.sum() == places
    assert quotas.min() >= 1
    larger = shares * places >= 1
    if larger.all():
        assert np.abs(quotas - shares * places).max() < 1 + 1e-6


@pytest.mark.parametrize(
    "packing",
    [{"pack": True, "sequence_length": 96}, pytest.param({}, marks=pytest.mark.slow)],
    ids=["packed", "one text a row"],
)
def test_a_stream_of_a_mixture_resumes_anywhere(folders, tokenizer, packing):
    data = {folders["a"]: 0.5, folders["b"]: 0.3, folders["c"]: 0.2}

    def batches(start=None):
        options = {"sequence_length": 32, "batch_size": 4, "seed": 5, "window_blocks": 8}
        dataset = pretraining_dataset(data, tokenizer, start=start, **(options | packing))
        return dataset.as_numpy_iterator()

    whole = [batch for batch, _ in zip(batches(), range(60), strict=False)]
    assert whole[50]["position"][0, 0] >= 1  # beyond the first epoch
    again = batches(start=whole[50]["position"])
    for expected in whole[51:56]:
        found = next(again)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
    if packing:
        assert whole[0]["example_ids"].max() > 1


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Two corpora of text with held-out parts, and their tokenizer."""
    words = [f"w{n}" for n in range(200)]
    tokenizer = kbert.WordPieceTokenizer([*SPECIAL, *words])
    rng, made = np.random.default_rng(0), []
    for documents in (60, 20):
        text = "\n\n".join(
            "\n".join(" ".join(rng.choice(words, 12)) for _ in range(4)) for _ in range(documents)
        )
        folder = tmp_path_factory.mktemp("text")
        (folder / "text.txt").write_text(text)
        out = str(folder / "shards")
        kbert.data.prepare_corpus(str(folder / "text.txt"), out, tokenizer, held_out_share=0.3)
        made.append(out)
    return made, tokenizer


def test_shares_that_whole_blocks_miss_are_named(folders, recwarn):
    a, b = folders["a"], folders["b"]
    Mixture.read({a: 2, b: 1}).reader("train", seed=0)
    assert not recwarn
    with pytest.warns(UserWarning, match=r"a0, .*b0 will be 0\.9\d+, 0\.0\d+: .*: 0\.999, 0\.001"):
        Mixture.read({a: 999, b: 1}).reader("train", seed=0)


def test_held_out_text_is_read_once_whatever_the_shares(prepared):
    (a, b), tokenizer = prepared
    mixture = Mixture.read({a: 0.1, b: 0.9})
    options = {"sequence_length": 64, "batch_size": 1, "segments": "doc_sentences", "epochs": 1}
    dataset = pretraining_dataset(mixture, tokenizer, split="held_out", **options)
    found = sum(
        int(x["padding_mask"].sum()) - 2
        for x in dataset.as_numpy_iterator()
        if x["padding_mask"].any()
    )
    assert found == mixture.split("held_out").tokens > 0


def test_the_same_epochs_again_would_leave_out_most_of_a_corpus(folders, tokenizer):
    with pytest.raises(ValueError, match=r"requires a single corpus: .*static_masks=2, .*a0, .*b0"):
        kbert.data.pretraining_dataset(
            {folders["a"]: 0.1, folders["b"]: 0.9},
            tokenizer,
            sequence_length=32,
            batch_size=4,
            segments="single",
            static_masks=2,
        )


def test_a_language_model_reads_a_mixture(folders, tokenizer):
    mixture = Mixture.read([folders["a"], folders["b"]])
    batch = next(iter(causal_dataset(mixture, tokenizer, sequence_length=16, batch_size=2)))
    assert batch["token_ids"].shape == (2, 16)


def test_summary_and_checksum_tell_mixtures_apart(prepared):
    (a, b), _ = prepared
    one, other = (Mixture.read({a: x, b: 1 - x}) for x in (0.5, 0.25))
    assert one.checksum != other.checksum
    documents = one.manifests[0].split("train").documents
    assert f"50.0% {a}: train: {documents} documents" in one.summary().replace("held_out: ", "")
    assert one.split("train").documents > documents


def test_what_is_no_mixture_is_refused(folders, prepared, tmp_path):
    a, b = folders["a"], folders["b"]
    with pytest.raises(ValueError, match=r"at least two different folders\. Received: \["):
        Mixture.read([a, f"{a}/."])
    with pytest.raises(ValueError, match=r"weights of a mixture must be above 0.*\[1\.0, 0\.0\]"):
        Mixture.read({a: 1, b: 0})
    with pytest.raises(ValueError, match=r"between 0 and 1\. Received: 1\.5"):
        Mixture.read([a, b], temperature=1.5)
    with pytest.raises(ValueError, match=r"or a temperature, .*Received: temperature=0\.7 and wei"):
        Mixture.read({a: 1, b: 1}, temperature=0.7)
    with pytest.raises(
        ValueError, match=r"prepared with the same tokenizer\. Received: a vocabulary"
    ):
        Mixture.read([a, prepared[0][0]])
    with pytest.raises(FileNotFoundError, match=r"No manifest\.json"):
        Mixture.read([a, str(tmp_path / "none")])


def test_a_flag_names_folders(tmp_path):
    assert parse_folders("a,b:c") == ["a", "b:c"]
    assert parse_folders("a:1") == "a:1"  # a folder of that name
    for text in ("a:0.7,b", "a:1,a:2"):
        with pytest.raises(ValueError, match=f"Received: {text}"):
            parse_folders(text)
    folder = tmp_path / "x,y"
    folder.mkdir()
    assert parse_folders(str(folder)) == str(folder)
