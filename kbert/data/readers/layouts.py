"""How data sets of TensorFlow Datasets become tables: one entry of `LAYOUTS` for each.

Names of features, orders of labels and splits are those of tensorflow-datasets 4.9.10. A set that
is not listed is read by the names of its features, see `kbert.data.read_table`.
"""

import dataclasses
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kbert.data.readers.choices import article_rows
from kbert.data.readers.rows import Row
from kbert.data.readers.squad import nearest
from kbert.data.readers.super_glue import row_of

# Feature -> value. A class is its name, None where there is no label.
Example = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How a data set becomes a table.

    Attributes:
        task: generic task that the table is for: "classify", "multilabel", "regress", "tag",
            "answer" or "choose".
        columns: column of the table -> feature, or several features that are joined by a space.
        rows: function from an example and the layout to rows; None = one row of `columns`.
        used: the features that `rows` reads, if there are large ones that it does not; else none.
        label_of: name of a task on words -> the feature with its tags, "" if there is none.
        classes: name of a class in the data set -> its name in the table, where they differ; None
            for a class that means that the label is missing.
        order: feature by which rows are sorted, if their order in the published file matters.
        languages: whether the last part of the name is a language, as in "xnli/de".
    """

    task: str
    columns: Mapping[str, str | tuple[str, ...]] = dataclasses.field(default_factory=dict)
    rows: "Callable[[Example, Layout], Iterable[Row]] | None" = None
    used: tuple[str, ...] = ()
    label_of: Mapping[str, str] = dataclasses.field(default_factory=dict)
    classes: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    order: str | None = None
    languages: bool = False

    @property
    def features(self) -> list[str]:
        """The features that are read; none = all."""
        if self.rows is not None:
            return [*self.used]
        names = [
            name for x in self.columns.values() for name in ((x,) if isinstance(x, str) else x)
        ]
        return list(dict.fromkeys(names))

    def rows_of(self, example: Example) -> Iterable[Row]:
        """Returns the rows of an example, with all its features."""
        return [_flat(example, self)] if self.rows is None else self.rows(example, self)


def layout_of(name: str) -> Layout | None:
    """Returns the layout of a data set, or None if it has none here.

    Args:
        name: NAME or NAME/CONFIG; a layout of all configs is found by the name alone.

    Example:
        >>> layout_of("glue/sst2").columns["text"], layout_of("xnli/de").languages
        ('sentence', True)
    """
    return LAYOUTS.get(name) or LAYOUTS.get(name.partition("/")[0])


def layout_table() -> str:
    """Formats the names of the data sets of each task as text, for help pages.

    >>> layout_table().splitlines()[0].split()[:2]
    ['answer', 'coqa,']
    """
    names: dict[str, set[str]] = {}
    for name, layout in LAYOUTS.items():
        names.setdefault(layout.task, set()).add(name.partition("/")[0])
    return "\n".join(
        textwrap.fill(
            ", ".join(sorted(names[task])),
            width=88,
            initial_indent=f"{task:<12}",
            subsequent_indent=" " * 12,
        )
        for task in sorted(names)
    )


def _flat(example: Example, layout: Layout) -> Row:
    """Returns the row of an example with flat features."""
    row: dict[str, Any] = {}
    for name, features in layout.columns.items():
        if isinstance(features, str):
            row[name] = example[features]
        else:
            row[name] = " ".join(str(example[feature]) for feature in features)
    if "id" in row:
        row["id"] = str(row["id"])
    if "label" in row:
        row["label"] = _label(row["label"], layout)
    return "there are no words" if row.get("words") == [] else row


def _label(value: Any, layout: Layout) -> Any:
    """Returns a label as a class's name, or as a number for regression; None for -1."""
    if value in (None, -1):
        return None
    if layout.task != "classify":
        return value
    return layout.classes.get(value, str(value))


def _universal_words(example: Example, layout: Layout) -> Iterator[Row]:
    """Yields a sentence of words that have a part of speech: no ranges of words, no empty nodes."""
    row = _flat(example, layout)
    kept = [i for i, tag in enumerate(example["upos"]) if tag != "_"]
    if isinstance(row, str) or not kept:
        yield "there are no words"
    else:
        yield row | {name: [row[name][i] for i in kept] for name in ("words", "labels")}


def _true_features(example: Example, layout: Layout) -> Iterator[Row]:
    """Yields a text with the names of its features that are true, or at least 0.5."""
    text = layout.columns["text"]
    labels = [name for name, x in example.items() if not isinstance(x, str) and x >= 0.5]
    yield {"text": example[str(text)], "label": labels}


def _translated(example: Example, layout: Layout) -> Iterator[Row]:
    """Yields the pair of XNLI in the language that `layout.columns` names."""
    language = str(layout.columns["language"])
    seconds = example["hypothesis"]
    second = dict(zip(seconds["language"], seconds["translation"], strict=True))
    if language not in second:
        yield f"they have no translation into {language!r}"
    else:
        pair = {"first": example["premise"][language], "second": second[language]}
        yield {**pair, "label": _label(example["label"], layout)}


def _spans(example: Example, layout: Layout) -> Iterator[Row]:
    """Yields a question of SQuAD; answers begin at their nearest occurrence."""
    answers = example["answers"]
    starts = [
        nearest(example["context"], text, start)
        for text, start in zip(answers["text"], answers["answer_start"], strict=True)
    ]
    if None in starts:
        yield "an answer does not occur in the context"
    else:
        yield {
            **{name: example[name] for name in ("id", "question", "context")},
            "answers": answers["text"],
            "answer_starts": starts,
        }


def _mrqa(example: Example, layout: Layout) -> Iterator[Row]:
    """Yields a question of MRQA (Fisch et al. 2019, https://arxiv.org/abs/1910.09753).

    The first occurrence of each detected answer comes first, which training uses. The other gold
    answers, which only scoring uses, follow with the start -1.
    """
    context, detected = example["context"], example["detected_answers"]
    starts: dict[str, int] = {}
    for text, spans in zip(detected["text"], detected["char_spans"]["start"], strict=True):
        position = nearest(context, text, spans[0] if spans else 0)
        if position is not None:
            starts.setdefault(text, position)
        elif spans and context[spans[0] : spans[0] + len(text)].lower() == text.lower():
            starts.setdefault(context[spans[0] : spans[0] + len(text)], spans[0])
    if not starts:
        yield "no answer occurs in the context"
        return
    starts |= dict.fromkeys((text for text in example["answers"] if text not in starts), -1)
    yield {
        "id": example["qid"],
        "question": example["question"],
        "context": context,
        "answers": [*starts],
        "answer_starts": [*starts.values()],
    }


def _conversation(example: Example, layout: Layout) -> Iterator[Row]:
    """Yields the questions of a story of CoQA, each after the two before it.

    An answer is a span of the evidence that the annotator marked (Reddy et al. 2019,
    https://arxiv.org/abs/1808.07042). A question that the story does not answer ("unknown") has no
    answer. Answers "yes" and "no", and those in other words than the story's, are left out.
    """
    story, questions, answers = example["story"], example["questions"], example["answers"]
    columns = (answers["input_text"], answers["answer_start"], answers["answer_end"])
    for number, (text, start, end) in enumerate(zip(*columns, strict=True)):
        text = text.strip(" .,;:!?\"'")
        row = {
            "question": " ".join(questions[max(number - 2, 0) : number + 1]),
            "context": story,
            "answers": [],
            "answer_starts": [],
        }
        if start < 0 or text.lower() == "unknown":
            yield row
            continue
        found = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)", re.IGNORECASE).search(
            story, start, end
        )
        if text.lower() in ("yes", "no"):
            yield "the answer is yes or no"
        elif not text or found is None:
            yield "the answer is not a span of the story"
        else:
            yield row | {"answers": [found[0]], "answer_starts": [found.start()]}


def _article(example: Example, layout: Layout) -> Iterator[Row]:
    """Yields the questions of an article of RACE."""
    for context, choices, label, identifier in article_rows("tfds:race", dict(example)):
        yield {"id": identifier, "context": context, "choices": choices, "label": label}


def _choice(context: str, choices: Callable[[Example], list[str]]) -> Layout:
    """Returns the layout of a context and choices, with the number of the right one as `label`.

    Args:
        context: feature of the context.
        choices: function from an example to its choices.
    """

    def rows(example: Example, layout: Layout) -> Iterator[Row]:
        label = example["label"]
        number = None if label in (None, -1) else int(label)
        yield _choices_row(example, example[context], choices(example), number)

    return Layout(task="choose", rows=rows)


def _choices_row(
    example: Example, context: str, choices: Iterable[str], label: int | None
) -> dict[str, Any]:
    """Returns a row of a context and choices; with the example's `id` if it has one."""
    identifier = {"id": example["id"]} if "id" in example else {}
    return {**identifier, "context": context, "choices": [*choices], "label": label}


def _lettered(choices: Callable[[Example], tuple[str, Mapping[str, str]]]) -> Layout:
    """Returns the layout of a question and choices with letters, `answerKey` the right one.

    Args:
        choices: function from an example to its question, and the letter -> text of each choice.
    """

    def rows(example: Example, layout: Layout) -> Iterator[Row]:
        question, texts = choices(example)
        letters, key = [*texts], example["answerKey"]
        label = letters.index(key) if key in letters else None
        yield _choices_row(example, question, texts.values(), label)

    return Layout(task="choose", rows=rows)


def _listed(example: Example) -> tuple[str, Mapping[str, str]]:
    """Returns the question and the choices of ARC and QASC."""
    choices = example["choices"]
    return example["question"], dict(zip(choices["label"], choices["text"], strict=True))


def _open_book(example: Example) -> tuple[str, Mapping[str, str]]:
    """Returns the question and the choices of OpenBookQA."""
    question = example["question"]
    return question["stem"], {letter: question[f"choice_{letter}"] for letter in "ABCD"}


def _commonsense(example: Example, layout: Layout) -> Iterator[Row]:
    """Yields a question of CommonsenseQA, with the choice that is the answer."""
    choices, answer = example["choices"], example["answer"]
    label = choices.index(answer) if answer in choices else None
    yield _choices_row(example, example["question"], choices, label)


def _blank(example: Example, layout: Layout) -> Iterator[Row]:
    """Yields a sentence of WinoGrande: what comes before the blank, and an option with the rest.

    (Sakaguchi et al. 2020, https://arxiv.org/abs/1907.10641, section 5.1.)
    """
    context, _, rest = example["sentence"].partition("_")
    choices = [f"{example[name]}{rest}" for name in ("option1", "option2")]
    label = example["label"]
    yield _choices_row(example, context.strip(), choices, None if label is None else int(label) - 1)


def _super_glue(task: str, kind: str = "classify") -> Layout:
    """Returns the layout of a task of SuperGLUE."""
    return Layout(task=kind, rows=lambda example, _: [row_of(task, example)], order="idx")


def _text(text: str | tuple[str, ...], label: str = "label", **settings: Any) -> Layout:
    """Returns the layout of texts with a class, or with a number if `task` is "regress"."""
    columns = {"text": text, "label": label}
    return Layout(**{"task": "classify", "columns": columns} | settings)


def _pair(
    first: str, second: str | tuple[str, ...], label: str = "label", **settings: Any
) -> Layout:
    """Returns the layout of pairs with a class, or with a number if `task` is "regress"."""
    columns = {"first": first, "second": second, "label": label}
    return Layout(**{"task": "classify", "columns": columns} | settings)


def _words(labels: str, **settings: Any) -> Layout:
    """Returns the layout of sentences of words with tags."""
    return Layout(task="tag", columns={"words": "tokens", "labels": labels}, **settings)


def _glue(layout: Layout) -> Layout:
    """Returns the layout of a task of GLUE: in the order of its files, which submissions need."""
    return dataclasses.replace(layout, columns={"id": "idx", **layout.columns}, order="idx")


_NLI = _pair("premise", "hypothesis")
_SPANS = Layout(task="answer", rows=_spans)
_UNIVERSAL = {"label_of": {"pos": "upos", "ner": ""}}
_TAGS = {"label_of": {"ner": "ner", "pos": "pos"}}
_XNLI = Layout(task="classify", rows=_translated, languages=True)

LAYOUTS: dict[str, Layout] = {
    "glue/cola": _glue(_text("sentence")),
    "glue/sst2": _glue(_text("sentence")),
    "glue/mrpc": _glue(_pair("sentence1", "sentence2")),
    "glue/stsb": _glue(_pair("sentence1", "sentence2", task="regress")),
    "glue/qqp": _glue(_pair("question1", "question2")),
    "glue/mnli": _glue(_NLI),
    "glue/mnli_matched": _glue(_NLI),
    "glue/mnli_mismatched": _glue(_NLI),
    "glue/qnli": _glue(_pair("question", "sentence")),
    "glue/rte": _glue(_pair("sentence1", "sentence2")),
    "glue/wnli": _glue(_pair("sentence1", "sentence2")),
    "glue/ax": _glue(_NLI),
    "super_glue/boolq": _super_glue("boolq"),
    "super_glue/cb": _super_glue("cb"),
    "super_glue/copa": _super_glue("copa", "choose"),
    "super_glue/multirc": _super_glue("multirc"),
    "super_glue/record": _super_glue("record", "answer"),
    "super_glue/rte": _super_glue("superglue_rte"),
    "super_glue/wic": _super_glue("wic"),
    "super_glue/wsc": _super_glue("wsc"),
    "super_glue/wsc.fixed": _super_glue("wsc"),
    "super_glue/axb": _super_glue("axb"),
    "super_glue/axg": _super_glue("axg"),
    "ag_news_subset": _text(("title", "description")),
    "anli": _pair(
        "context",
        "hypothesis",
        classes={"e": "entailment", "n": "neutral", "c": "contradiction"},
    ),
    "bool_q": _pair("question", "passage", "answer"),
    "clinc_oos": _text("text", "intent_name"),
    "eraser_multi_rc": _pair("passage", "query_and_answer"),
    "esnli": _NLI,
    "imdb_reviews": _text("text"),
    "mctaco": _pair("sentence", ("question", "answer")),
    "movie_rationales": _text("review"),
    "multi_nli": _NLI,
    "multi_nli_mismatch": dataclasses.replace(_NLI, classes={"-": None}),
    "paws_wiki": _pair("sentence1", "sentence2"),
    "paws_x_wiki": _pair("sentence1", "sentence2"),
    "sci_tail": _NLI,
    "scicite": _text("string"),
    "sentiment140": _text("text", "polarity"),
    "snli": _NLI,
    "trec": _text("text", "label-coarse"),
    "xnli": _XNLI,
    "xtreme_pawsx": _pair("sentence1", "sentence2"),
    "xtreme_xnli": _XNLI,
    "yelp_polarity_reviews": _text("text"),
    "goemotions": _text("comment_text", task="multilabel", rows=_true_features),
    "wikipedia_toxicity_subtypes": _text("text", task="multilabel", rows=_true_features),
    "assin2": _pair("text", "hypothesis", "similarity", task="regress"),
    "civil_comments": _text("text", "toxicity", task="regress"),
    "conll2002": _words("ner", **_TAGS),
    "conll2003": _words("ner", **_TAGS),
    "universal_dependencies": _words("upos", rows=_universal_words, **_UNIVERSAL),
    "wikiann": _words("tags", label_of={"ner": "tags", "pos": ""}),
    "xtreme_pos": _words("upos", rows=_universal_words, **_UNIVERSAL),
    "coqa": Layout(task="answer", rows=_conversation),
    "mlqa": _SPANS,
    "mrqa": Layout(
        task="answer",
        rows=_mrqa,
        used=("qid", "question", "context", "detected_answers", "answers"),
    ),
    "squad": _SPANS,
    "tydi_qa": _SPANS,
    "xquad": _SPANS,
    "ai2_arc": _lettered(_listed),
    "cos_e": Layout(task="choose", rows=_commonsense),
    "cosmos_qa": _choice(
        "context", lambda x: [f"{x['question']} {x[f'answer{i}']}" for i in range(4)]
    ),
    "hellaswag": _choice("context", lambda example: example["endings"]),
    "openbookqa": _lettered(_open_book),
    "piqa": _choice("goal", lambda example: [example["sol1"], example["sol2"]]),
    "qasc": _lettered(_listed),
    "race": Layout(task="choose", rows=_article),
    "winogrande": Layout(task="choose", rows=_blank),
}
