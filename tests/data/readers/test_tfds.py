"""Data sets by name, on files that are written here with the features of the installed builders."""

import json

import pytest

from kbert.data import read_conll, read_glue, read_squad, read_tfds
from kbert.data.readers.layouts import LAYOUTS, layout_of, layout_table
from kbert.data.readers.tables import if_file
from tests.data_sets import data_dir, store, store_file, tfds

STORY = "The cat Mia is white. She lives in a barn with hens."
SPANS = {"title": "t", "context": "Ann sings. Ann eats.", "question": "Who?"}
ARC = {"text": ["ice", "fire", "air"], "label": ["A", "B", "C"]}


def tokens(*columns):
    """Words, and tags of each named column."""
    return {"tokens": ["Ada", "wrote"], **dict(columns)}


# Name -> examples of a split, and the columns of its table.
SETS = {
    "glue/cola": (
        [{"sentence": "A b.", "label": "acceptable", "idx": 7}],
        {"id": ["7"], "text": ["A b."], "label": ["acceptable"]},
    ),
    "glue/stsb": (
        [{"sentence1": "a", "sentence2": "b", "label": 2.5, "idx": 0}],
        {"id": ["0"], "first": ["a"], "second": ["b"], "label": [2.5]},
    ),
    "glue/mnli_mismatched": (
        [{"premise": "p", "hypothesis": "h", "label": "neutral", "idx": 3}],
        {"id": ["3"], "first": ["p"], "second": ["h"], "label": ["neutral"]},
    ),
    "ag_news_subset": (
        [{"title": "T.", "description": "D.", "label": 2}],
        {"text": ["T. D."], "label": ["Business"]},
    ),
    "anli/r1": (
        [{"uid": "u", "context": "c", "hypothesis": "h", "label": "c"}],
        {"first": ["c"], "second": ["h"], "label": ["contradiction"]},
    ),
    "bool_q": (
        [{"question": "is it", "passage": "It is.", "answer": True, "title": "t"}],
        {"first": ["is it"], "second": ["It is."], "label": ["True"]},
    ),
    "imdb_reviews": ([{"text": "Fine.", "label": "pos"}], {"text": ["Fine."], "label": ["pos"]}),
    "mctaco": (
        [
            {
                "sentence": "s",
                "question": "q?",
                "answer": "a",
                "label": "no",
                "category": "Frequency",
            }
        ],
        {"first": ["s"], "second": ["q? a"], "label": ["no"]},
    ),
    "multi_nli_mismatch": (
        [{"premise": "p", "hypothesis": "h", "label": x} for x in ("-", "neutral")],
        {"first": ["p"], "second": ["h"], "label": ["neutral"]},
    ),
    "paws_x_wiki/de": (
        [{"sentence1": "a", "sentence2": "b", "label": 1}],
        {"first": ["a"], "second": ["b"], "label": ["paraphrase"]},
    ),
    "sentiment140": (
        [{"polarity": 4, "date": "d", "query": "q", "user": "u", "text": "Hi"}],
        {"text": ["Hi"], "label": ["4"]},
    ),
    "snli": (
        [{"premise": "p", "hypothesis": "h", "label": x} for x in (-1, "entailment")],
        {"first": ["p"], "second": ["h"], "label": ["entailment"]},
    ),
    "conll2003": (
        [
            tokens(("pos", ["NNP", "VBD"]), ("chunks", ["B-NP", "B-VP"]), ("ner", ["B-PER", "O"])),
            {"tokens": [], "pos": [], "chunks": [], "ner": []},
        ],
        {"words": [["Ada", "wrote"]], "labels": [["B-PER", "O"]]},
    ),
    "wikiann/en": (
        [tokens(("tags", ["B-PER", "O"]), ("langs", ["en", "en"]), ("spans", ["PER: Ada"]))],
        {"words": [["Ada", "wrote"]], "labels": [["B-PER", "O"]]},
    ),
    "universal_dependencies/de_hdt": (
        [
            {
                "idx": "s1",
                "tokens": ["im", "in", "dem"],
                **{
                    name: ["_", "_", "_"]
                    for name in ("lemmas", "xpos", "feats", "head", "deprel", "deps", "misc")
                },
                "upos": ["_", "ADP", "DET"],
                "text": "im",
            }
        ],
        {"words": [["in", "dem"]], "labels": [["ADP", "DET"]]},
    ),
    "xtreme_pos/xtreme_pos_de": (
        [tokens(("upos", ["PROPN", "VERB"]))],
        {"words": [["Ada", "wrote"]], "labels": [["PROPN", "VERB"]]},
    ),
    "squad": (
        [
            {**SPANS, "id": "a", "answers": [{"text": "Ann", "answer_start": 9}]},
            {**SPANS, "id": "b", "answers": [{"text": "Eve", "answer_start": 0}]},
        ],
        {
            "id": ["a"],
            "question": ["Who?"],
            "context": [SPANS["context"]],
            "answers": [["Ann"]],
            "answer_starts": [[11]],
        },
    ),
    "squad/v2.0": (
        [{**SPANS, "id": "a", "answers": [], "plausible_answers": [], "is_impossible": True}],
        {
            "id": ["a"],
            "question": ["Who?"],
            "context": [SPANS["context"]],
            "answers": [[]],
            "answer_starts": [[]],
        },
    ),
    "mrqa/news_qa": (
        [
            {
                "subset": "NewsQA",
                "context": "Ann sings. ANN eats.",
                "context_tokens": [],
                "qid": "q",
                "question": "Who?",
                "question_tokens": [],
                "detected_answers": [
                    {
                        "text": "ann",
                        "char_spans": [{"start": 11, "end": 13}, {"start": 0, "end": 2}],
                        "token_spans": [],
                    },
                    {"text": "Ann", "char_spans": [{"start": 0, "end": 2}], "token_spans": []},
                ],
                "answers": ["Ann", "Anne"],
            }
        ],
        {
            "id": ["q"],
            "question": ["Who?"],
            "context": ["Ann sings. ANN eats."],
            "answers": [["ANN", "Ann", "Anne"]],
            "answer_starts": [[11, 0, -1]],
        },
    ),
    "coqa": (
        [
            {
                "source": "mctest",
                "story": STORY,
                "questions": ["What color is Mia?", "Is she old?", "Where?", "Alone?", "Her age?"],
                "answers": [
                    {"input_text": "White.", "answer_start": 0, "answer_end": 21},
                    {"input_text": "unknown", "answer_start": -1, "answer_end": -1},
                    {"input_text": "in a barn", "answer_start": 22, "answer_end": 52},
                    {"input_text": "No", "answer_start": 22, "answer_end": 52},
                    {"input_text": "a kitten", "answer_start": 22, "answer_end": 52},
                ],
            }
        ],
        {
            "question": [
                "What color is Mia?",
                "What color is Mia? Is she old?",
                "What color is Mia? Is she old? Where?",
            ],
            "context": [STORY] * 3,
            "answers": [["white"], [], ["in a barn"]],
            "answer_starts": [[15], [], [32]],
        },
    ),
    "hellaswag": (
        [
            {
                "context": "She",
                "endings": ["runs.", "flies."],
                "activity_label": "a",
                "label": 1,
                "split_type": "indomain",
                "source_id": "x",
            }
        ],
        {"context": ["She"], "choices": [["runs.", "flies."]], "label": [1]},
    ),
    "cosmos_qa": (
        [{"context": "c", "question": "q?", **{f"answer{i}": f"a{i}" for i in range(4)}}],
        {"id": ["i"], "context": ["c"], "choices": [[f"q? a{i}" for i in range(4)]], "label": [2]},
    ),
    "race/high": (
        [
            {
                "article": "An article.",
                "questions": ["He _ home.", "Why?"],
                "answers": ["B", "A"],
                "options": [["runs", "goes"], ["x", "y"]],
                "example_id": "high1.txt",
            }
        ],
        {
            "id": ["high1.txt"] * 2,
            "context": ["An article."] * 2,
            "choices": [["He runs home.", "He goes home."], ["Why? x", "Why? y"]],
            "label": [1, 0],
        },
    ),
    "ai2_arc/ARC-Challenge": (
        [{"id": "i", "question": "Hot?", "choices": ARC, "answerKey": "B"}],
        {"id": ["i"], "context": ["Hot?"], "choices": [["ice", "fire", "air"]], "label": [1]},
    ),
    "openbookqa": (
        [
            {
                "question": {"stem": "Hot?", **{f"choice_{x}": x.lower() for x in "ABCD"}},
                "fact1": "f",
                "humanScore": 1.0,
                "clarity": 1.0,
                "turkIdAnonymized": "t",
                "answerKey": "D",
            }
        ],
        {"context": ["Hot?"], "choices": [["a", "b", "c", "d"]], "label": [3]},
    ),
    "piqa": (
        [{"id": "i", "goal": "g", "sol1": "a", "sol2": "b", "label": 1}],
        {"id": ["i"], "context": ["g"], "choices": [["a", "b"]], "label": [1]},
    ),
    "winogrande": (
        [{"sentence": "Ann paid Eve as _ owed.", "option1": "Ann", "option2": "Eve", "label": "1"}],
        {"context": ["Ann paid Eve as"], "choices": [["Ann owed.", "Eve owed."]], "label": [0]},
    ),
    "cos_e": (
        [
            {
                "id": "i",
                "question": "q",
                "choices": ["a", "b"],
                "answer": "b",
                "abstractive_explanation": "",
                "extractive_explanation": "",
            }
        ],
        {"id": ["i"], "context": ["q"], "choices": [["a", "b"]], "label": [1]},
    ),
}
SETS["cosmos_qa"][0][0].update(label="2", id="i")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    with data_dir(tmp_path_factory.mktemp("tfds")) as folder:
        yield folder


@pytest.mark.parametrize("name", SETS)
def test_a_known_data_set_is_the_table_of_its_task(name, folder):
    examples, expected = SETS[name]
    store(folder, name, train=examples)
    table = read_tfds(name)
    assert table.columns == expected
    assert table.place(0) == f"row 0 of tfds:{name}:train"


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_read_features_that_the_installed_builders_have(name):
    layout = LAYOUTS[name]
    features = tfds.builder(name).info.features
    assert {*layout.features} <= {*features}
    assert layout.order is None or layout.order in (layout.features or features)
    assert name in layout_table() or name.split("/")[0] in layout_table()


def test_what_is_left_out_is_counted(caplog):
    read_tfds("coqa")
    assert "tfds:coqa:train: 1 rows are left out: the answer is yes or no" in caplog.text
    assert "1 rows are left out: the answer is not a span of the story" in caplog.text
    read_tfds("snli")
    assert "tfds:snli:train: 1 rows are left out: they have no label" in caplog.text
    assert if_file("tfds:snli").columns == read_tfds("snli").columns
    read_tfds("squad")
    assert "1 rows are left out: an answer does not occur in the context" in caplog.text


def test_glue_is_in_the_order_of_its_files_and_a_test_set_has_no_labels(folder):
    rows = [{"sentence": f"s{i}", "label": -1, "idx": i} for i in range(40)]
    store(folder, "glue/sst2", test=rows)
    assert len(read_tfds("glue/sst2:test[:10]")) == 10
    assert read_tfds("glue/sst2", split="test").columns == {
        "id": [str(i) for i in range(40)],
        "text": [f"s{i}" for i in range(40)],
    }


def test_mnli_has_two_development_sets(folder):
    row = {"hypothesis": "h", "label": 0, "idx": 0}
    splits = {
        f"{use}_{domain}": [{**row, "premise": f"{use} {domain}"}]
        for use in ("validation", "test")
        for domain in ("matched", "mismatched")
    }
    store(folder, "glue/mnli", **splits)
    for task, domain in (("mnli", "matched"), ("mnlimm", "mismatched")):
        for split, use in (("dev", "validation"), ("test", "test")):
            table = read_tfds("glue/mnli", split=split, task=task)
            assert table["first"] == [f"{use} {domain}"]
    table = read_tfds("tfds:glue/mnli:validation_matched", task="mnlimm")
    assert table["first"] == ["validation matched"]


def test_a_pair_in_one_language(folder):
    languages = tfds.builder("xnli").info.features["premise"]
    example = {
        "premise": {language: f"p {language}" for language in languages},
        "hypothesis": {"de": "h de", "en": "h en"},
        "label": "neutral",
    }
    store(folder, "xnli", validation=[example])
    assert read_tfds("xnli/de", split="dev").columns == {
        "first": ["p de"],
        "second": ["h de"],
        "label": ["neutral"],
    }
    for name in ("xnli", "xnli/xx"):
        with pytest.raises(ValueError, match=r"read in one language.*'de'.*Received"):
            read_tfds(name)


def test_several_labels(folder):
    names = [name for name in tfds.builder("goemotions").info.features if name != "comment_text"]
    example = dict.fromkeys(names, False) | {"comment_text": "Wow", "joy": True, "surprise": True}
    store(folder, "goemotions", train=[example])
    assert read_tfds("goemotions", task="multilabel").columns == {
        "text": ["Wow"],
        "label": [["joy", "surprise"]],
    }
    with pytest.raises(ValueError, match=r"for --task=multilabel.*the task classify"):
        read_tfds("goemotions", task="classify")


def test_tags_by_the_task_and_by_a_feature():
    read = {task: read_tfds("conll2003", task=task)["labels"] for task in ("ner", "pos", "tag")}
    assert read == {"ner": [["B-PER", "O"]], "pos": [["NNP", "VBD"]], "tag": [["B-PER", "O"]]}
    chunks = read_tfds("conll2003", task="tag", columns={"labels": "chunks"})
    assert chunks["labels"] == [["B-NP", "B-VP"]]
    with pytest.raises(ValueError, match="the task pos"):
        read_tfds("wikiann/en", task="pos")
    with pytest.raises(ValueError, match=r"has the features \['chunks'.*Received: \['no'\]"):
        read_tfds("conll2003", columns={"labels": "no"})


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("imdb_reviews", "tag"),
        ("squad", "classify"),
        ("glue/stsb", "classify"),
        ("conll2003", "answer"),
        ("hellaswag", "sst2"),
        ("imdb_reviews", "multilabel"),
    ],
)
def test_a_data_set_of_another_kind_is_refused(name, task):
    with pytest.raises(ValueError, match=f"tfds:{name} is a data set for .*Received: the task"):
        read_tfds(name, task=task)


def test_features_named_by_the_user_are_read_for_any_task(folder):
    table = read_tfds("squad", task="regress", columns={"text": "context", "label": "title"})
    assert set(table.columns) == {"text", "label"}
    with pytest.raises(ValueError, match=r"and, nested and not read, \['answers'\]. Received"):
        read_tfds("squad", task="regress", columns={"text": "answers"})
    assert read_tfds("glue/stsb", task="embed")["label"] == [2.5]
    table = read_tfds("ag_news_subset", columns={"text": "title"})
    assert table.columns == {"text": ["T."], "label": ["Business"]}


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("swag", {}, r"nearest names are \[.*Read the data from its published file"),
        ("wnut_17", {}, "no such data set"),
        ("codah", {}, "no such data set"),
        ("ms_marco", {}, "no such data set"),
        ("glue/sst3", {}, "sst3"),
        ("squad:train", {"split": "train"}, "given once"),
        (
            "squad",
            {"split": "dev"},
            r"has the splits \['train'\]. Received: 'validation' and .* 'dev'$",
        ),
    ],
)
def test_what_is_not_there_raises(name, options, match):
    with pytest.raises(ValueError, match=match):
        read_tfds(name, **options)


def test_the_default_config_decides_the_layout():
    assert layout_of("glue") is None
    assert "text" in read_tfds("glue")  # cola


def test_tables_equal_those_of_the_published_files(folder, tmp_path):
    """The builder's own generator reads the same files."""
    path = tmp_path / "dev.tsv"
    path.write_text("sentence\tlabel\nA gem .\t1\nDull .\t0\nFine .\t1\n", encoding="utf-8")
    store_file(folder, "glue/sst2", path, "dev")
    table = read_tfds("glue/sst2", split="train", task="sst2")
    assert {name: table[name] for name in ("text", "label")} == read_glue("sst2", path).columns

    path = tmp_path / "train.txt"
    path.write_text("Ada NNP B-NP B-PER\nwrote VBD B-VP O\n\nYes UH B-INTJ O\n", encoding="utf-8")
    store_file(folder, "conll2003", path)
    assert read_tfds("conll2003").columns == read_conll(path).columns

    path = tmp_path / "train.json"
    answers = [{"text": "Ann", "answer_start": 0}]
    questions = [
        {"id": "a", "question": "Who?", "answers": answers, "is_impossible": False},
        {"id": "b", "question": "Why?", "answers": [], "is_impossible": True},
    ]
    article = {"title": "t", "paragraphs": [{"context": "Ann sings.", "qas": questions}]}
    path.write_text(json.dumps({"data": [article]}), encoding="utf-8")
    store_file(folder, "squad/v2.0", path)
    assert rows_of(read_tfds("squad/v2.0")) == rows_of(read_squad(path))


def rows_of(table):
    """The rows of a table by their ids: the data set has shuffled them."""
    columns = {name: x for name, x in table.columns.items() if name != "id"}
    return dict(zip(table["id"], zip(*columns.values(), strict=True), strict=True))
