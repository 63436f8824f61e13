"""Records of SuperGLUE's published files, and the tables they are."""

PASSAGE = "Usain Bolt ran in the USA.\n@highlight\nThe US saw Bolt win"
# Name of a task -> records of a published file, and the columns of their table.
FILES = {
    "boolq": (
        [{"question": "is it", "passage": "It is.", "idx": 0, "label": True}],
        {"id": ["0"], "first": ["is it"], "second": ["It is."], "label": ["True"]},
    ),
    "cb": (
        [{"premise": "p", "hypothesis": "h", "label": "neutral", "idx": 4}],
        {"id": ["4"], "first": ["p"], "second": ["h"], "label": ["neutral"]},
    ),
    "copa": (
        [
            {
                "premise": "It rained.",
                "choice1": "a",
                "choice2": "b",
                "question": question,
                "label": label,
                "idx": label,
            }
            for label, question in enumerate(["cause", "effect"])
        ],
        {
            "id": ["0", "1"],
            "context": [
                "It rained. What was the cause of this?",
                "It rained. What happened as a result?",
            ],
            "choices": [["a", "b"]] * 2,
            "label": [0, 1],
        },
    ),
    "multirc": (
        [
            {
                "idx": 2,
                "version": 1.1,
                "passage": {
                    "text": "Ann sings.",
                    "questions": [
                        {
                            "question": "Who?",
                            "idx": 5,
                            "answers": [
                                {"text": "Ann", "idx": 8, "label": 1},
                                {"text": "Eve", "idx": 9, "label": 0},
                            ],
                        }
                    ],
                },
            }
        ],
        {
            "id": ["2-5-8", "2-5-9"],
            "first": ["Ann sings."] * 2,
            "second": ["Who? Ann", "Who? Eve"],
            "group": ["2-5"] * 2,
            "label": ["True", "False"],
        },
    ),
    "record": (
        [
            {
                "source": "CNN",
                "idx": 3,
                "passage": {
                    "text": PASSAGE,
                    "entities": [{"start": 0, "end": 9}, {"start": 22, "end": 24}],
                },
                "qas": [
                    {
                        "query": "@placeholder won",
                        "idx": 7,
                        "answers": [
                            {"start": 49, "end": 52, "text": "Bolt"},
                            {"start": 0, "end": 9, "text": "Usain Bolt"},
                        ],
                    },
                    {
                        "query": "in the @placeholder",
                        "idx": 8,
                        "answers": [{"start": 42, "end": 43, "text": "US"}],
                    },
                ],
            }
        ],
        {
            "id": ["7", "8"],
            "question": ["@placeholder won", "in the @placeholder"],
            "context": [PASSAGE] * 2,
            "answers": [["Usain Bolt", "Bolt"], ["US"]],
            "answer_starts": [[0, 6], [PASSAGE.index("US saw")]],
        },
    ),
    "superglue_rte": (
        [{"premise": "p", "hypothesis": "h", "label": "not_entailment", "idx": 0}],
        {"id": ["0"], "first": ["p"], "second": ["h"], "label": ["not_entailment"]},
    ),
    "wic": (
        [
            {
                "word": "pet",
                "sentence1": "A pet.",
                "sentence2": "Pets eat.",
                "idx": 0,
                "label": False,
                "start1": 2,
                "start2": 0,
                "end1": 5,
                "end2": 4,
                "version": 1.1,
            }
        ],
        {"id": ["0"], "first": ["A *pet*."], "second": ["*Pets* eat."], "label": ["False"]},
    ),
    "wsc": (
        [
            {
                "text": "Mark told Pete lies about himself.",
                "target": {
                    "span2_index": 5,
                    "span1_index": 0,
                    "span1_text": "mark",
                    "span2_text": "himself",
                },
                "idx": 0,
                "label": True,
            },
            {
                "text": "The dog,  old as it was, ran.",
                "target": {
                    "span1_index": 0,
                    "span1_text": "The dog old",
                    "span2_index": 4,
                    "span2_text": "it",
                },
                "idx": 1,
                "label": False,
            },
        ],
        {
            "id": ["0", "1"],
            "text": [
                "*Mark* told Pete lies about #himself#.",
                "*The dog,  old* as #it# was, ran.",
            ],
            "label": ["True", "False"],
        },
    ),
    "axb": (
        [{"sentence1": "a", "sentence2": "b", "idx": 1, "label": "entailment", "logic": "x"}],
        {"id": ["1"], "first": ["a"], "second": ["b"], "label": ["entailment"]},
    ),
    "axg": (
        [{"premise": "a", "hypothesis": "b", "idx": 1, "label": "entailment", "pair_id": 0}],
        {"id": ["1"], "first": ["a"], "second": ["b"], "label": ["entailment"]},
    ),
}
