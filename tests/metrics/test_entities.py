"""Entity scores against those of seqeval 1.2.2, as numbers and, where it is installed, itself."""

import itertools
import random
import sys

import numpy as np
import pytest

from kbert.metrics.entities import entity_report, entity_spans, find_scheme

PREFIXES = {"BIO": "BI", "BIOES": "BIES", "BILOU": "BILU"}


def random_sentences(scheme, count=60, seed=0):
    """(labels, predictions) in which most sequences break the rules of the scheme."""
    rng = random.Random(seed)
    names = ["O", "O", *(f"{p}-{kind}" for p in PREFIXES[scheme] for kind in ("per", "lo-c"))]
    names += PREFIXES[scheme] if seed % 2 else ()
    labels = [rng.choices(names, k=rng.choice([1, 2, 3, 8, 15])) for _ in range(count)]
    predictions = [[rng.choice([x, x, rng.choice(names)]) for x in row] for row in labels]
    return labels, predictions


# Scheme, whether strict, and by seqeval: precision, recall, F1 and number of "lo-c" and "per";
# precision, recall and F1 of both; the mean F1.
SEQEVAL = [
    (
        "BIO",
        False,
        [
            [0.6666666667, 0.7043478261],
            [0.6909090909, 0.786407767],
            [0.6785714286, 0.7431192661],
            [110, 103],
        ],
        [0.6855895197, 0.7370892019, 0.7104072398],
        0.7108453473,
    ),
    (
        "BIO",
        True,
        [[0.6363636364, 0.6724137931], [0.7, 0.6964285714], [0.6666666667, 0.6842105263], [60, 56]],
        [0.6532258065, 0.6982758621, 0.675],
        0.6754385965,
    ),
    (
        "BIOES",
        False,
        [
            [0.8088235294, 0.7371794872],
            [0.780141844, 0.8156028369],
            [0.7942238267, 0.7744107744],
            [141, 141],
        ],
        [0.7705479452, 0.7978723404, 0.7839721254],
        0.7843173006,
    ),
    (
        "BIOES",
        True,
        [
            [0.7727272727, 0.6153846154],
            [0.7727272727, 0.7804878049],
            [0.7727272727, 0.688172043],
            [44, 41],
        ],
        [0.6875, 0.7764705882, 0.729281768],
        0.7304496579,
    ),
    (
        "BILOU",
        True,
        [
            [0.7727272727, 0.6153846154],
            [0.7727272727, 0.7804878049],
            [0.7727272727, 0.688172043],
            [44, 41],
        ],
        [0.6875, 0.7764705882, 0.729281768],
        0.7304496579,
    ),
]


@pytest.mark.parametrize(("scheme", "strict", "of_types", "overall", "macro"), SEQEVAL)
def test_scores_of_ill_formed_sequences(scheme, strict, of_types, overall, macro):
    report = entity_report(*random_sentences(scheme), scheme=scheme if strict else None)
    assert report.types == ["lo-c", "per"]
    found = report.precision, report.recall, report.f1, report.support
    np.testing.assert_allclose(found, of_types, atol=1e-9)
    np.testing.assert_allclose(list(report.overall.values()), overall, atol=1e-9)
    scores = [report.scores[name] for name in ("macro_f1", "f1_lo-c", "f1_per")]
    np.testing.assert_allclose(scores, [macro, *of_types[2]], atol=1e-9)


@pytest.mark.filterwarnings("ignore")  # seqeval warns of types without entities
@pytest.mark.parametrize("scheme", PREFIXES)
def test_scores_equal_those_of_seqeval(scheme):
    labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    strict = pytest.importorskip("seqeval.metrics.v1").precision_recall_fscore_support
    classes = pytest.importorskip("seqeval.scheme")
    strict_scheme = {"BIO": classes.IOB2, "BIOES": classes.IOBES, "BILOU": classes.BILOU}[scheme]
    for seed in range(30):
        pair = random_sentences(scheme, count=1 + seed % 4, seed=seed)
        wanted = [(scheme, strict(*pair, scheme=strict_scheme))]
        if scheme != "BILOU":  # its default mode does not know L and U
            wanted.append((None, labeling.precision_recall_fscore_support(*pair)))
            for row in pair[0]:
                theirs = [(name, i, j + 1) for name, i, j in labeling.get_entities(row)]
                assert entity_spans(row) == theirs
        for rules, scores in wanted:
            report = entity_report(*pair, scheme=rules)
            found = report.precision, report.recall, report.f1, report.support
            np.testing.assert_array_equal(np.array(found), np.array(scores))


def test_lenient_bilou_is_bioes_under_other_names():
    labels, predictions = random_sentences("BILOU")
    table = str.maketrans("LU", "ES")
    renamed = [
        [[x.translate(table) for x in row] for row in side] for side in (labels, predictions)
    ]
    assert entity_report(labels, predictions).scores == entity_report(*renamed).scores


@pytest.mark.parametrize(
    ("labels", "lenient", "strict"),
    [
        ("B I O B", [(0, 2), (3, 4)], [(0, 2), (3, 4)]),
        ("O I I", [(1, 3)], []),
        ("B B I", [(0, 1), (1, 3)], [(0, 1), (1, 3)]),
        ("", [], []),
    ],
)
def test_spans(labels, lenient, strict):
    assert [(s.start, s.end) for s in entity_spans(labels.split())] == lenient
    assert [(s.start, s.end) for s in entity_spans(labels.split(), scheme="BIO")] == strict


def test_a_type_that_changes_ends_an_entity():
    labels = ["B-a", "I-b", "I-b"]
    assert entity_spans(labels) == [("a", 0, 1), ("b", 1, 3)]
    assert entity_spans(labels, scheme="BIO") == [("a", 0, 1)]


def test_an_entity_must_end_by_its_scheme():
    assert entity_spans(["B-a", "I-a", "S-a"], scheme="BIOES") == [("a", 2, 3)]
    assert entity_spans(["B-a", "L-a", "B-a"], scheme="BILOU") == [("a", 0, 2)]


def test_sentences_are_apart():
    report = entity_report([["B-a"], ["I-a"]], [["B-a"], ["I-a"]])
    assert report.support.tolist() == [2]


def test_nothing_to_find():
    report = entity_report([["O", "O"], []], [["O", "O"], []])
    assert report.types == []
    assert set(report.scores.values()) == {0.0}
    assert str(report).splitlines()[-1].split() == ["all", "0.0000", "0.0000", "0.0000", "0"]


@pytest.mark.parametrize(
    ("names", "scheme"),
    [
        (["O", "B-x", "I-x"], "BIO"),
        (["B", "I", "O"], "BIO"),
        (["I-x", "O"], "BIO"),
        (["O", "S-x"], "BIOES"),
        (["O", "B-x", "I-x", "E-x", "S-x"], "BIOES"),
        (["O", "U-x", "L-x", "B-x"], "BILOU"),
        (["O", "U-x", "S-x"], None),
        (["O"], None),
        ([], None),
        (["NOUN", "X", "SYM"], None),
        (["B-x", "I-x", "other"], None),
        (["B-", "O"], None),
    ],
)
def test_find_scheme(names, scheme):
    assert find_scheme(names) == scheme


def count_calls(function, *arguments) -> int:
    """Of functions, Python's own too, while it runs."""
    calls = itertools.count()
    sys.setprofile(lambda frame, event, argument: event.endswith("call") and next(calls))
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return next(calls)


def test_twice_as_many_words_are_twice_the_work():
    labels, predictions = random_sentences("BIO", count=4_000)
    half = count_calls(entity_report, labels[:2_000], predictions[:2_000])
    assert half > 10_000
    assert count_calls(entity_report, labels, predictions) < 2.2 * half


def test_errors():
    with pytest.raises(ValueError, match=r".O., or one of B, I, E, S, L, U and a type.*'NOUN'"):
        entity_spans(["NOUN"])
    with pytest.raises(ValueError, match=r"label of BIO must be .*B, I and a type.*'E-x'"):
        entity_spans(["E-x"], scheme="BIO")
    with pytest.raises(ValueError, match=r"scheme must be one of BIO, BIOES, BILOU or None.*'IOB'"):
        entity_spans(["O"], scheme="IOB")
    with pytest.raises(ValueError, match=r"the same sentences.*2 and 1 sentences"):
        entity_report([["O"], ["O"]], [["O"]])
    with pytest.raises(ValueError, match="number 1 with 2 labels and 1 predictions"):
        entity_report([["O"], ["O", "O"]], [["O"], ["O"]])
