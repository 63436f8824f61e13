"""The same fine-tuning in transformers on torch: a loop as its users write it.

AdamW in one kernel, no decay of biases and norms, warm-up and linear decay, clipping at 1,
batches padded to their longest row, bfloat16 by autocast. Nothing of kbert is imported, so that a
process which runs this has torch's memory alone.

Shapes: B rows, T tokens, A alternatives, C labels.
"""

import dataclasses
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks._fine_tuning_runs import Job

transformers.logging.set_verbosity_error()  # each head is new, as is meant

IGNORED = -100  # the label that torch's cross entropy leaves out
EVALUATION_BATCH = 64
BEST_TOKENS, LONGEST_ANSWER = 20, 30  # of a question's window, as in transformers' run_qa.py
UNTIMED = 2  # steps at the start that a partial run does not count


def run(job: Job) -> dict[str, Any]:
    """Trains and answers.

    Returns:
        "seconds" to tokenise and train, extrapolated to all steps where only the first ones were
        made; "evaluate_seconds" and "answers" where all were; "peak_mib" of the process.
    """
    torch.manual_seed(job.seed)
    kind = KINDS[job.kind]
    tokenizer = transformers.AutoTokenizer.from_pretrained(job.weights)
    auto = getattr(transformers, f"AutoModelFor{kind.model}")
    options = {"num_labels": len(job.labels) or 1} if kind.has_labels else {}
    model = auto.from_pretrained(job.weights, **options)
    began = time.perf_counter()
    rows = kind.encode(tokenizer, job.train, job)
    encoded = time.perf_counter() - began
    result = {"seconds": encoded + train(model, rows, job)}
    if job.steps is None:
        began = time.perf_counter()
        rows = kind.encode(tokenizer, job.dev, job)
        result["answers"] = kind.decode(rows, forward(model, rows, job), job)
        result["evaluate_seconds"] = time.perf_counter() - began
    return {**result, "peak_mib": peak_mib()}


def peak_mib() -> float:
    """Of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cosine(job: Job) -> dict[str, Any]:
    """Similarity of two texts without training: the cosine of their mean vectors."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(job.weights)
    model = transformers.AutoModel.from_pretrained(job.weights)
    began = time.perf_counter()
    vectors = [mean_vectors(model, tokenizer, job.dev[name], job) for name in ("first", "second")]
    answers = torch.nn.functional.cosine_similarity(*map(torch.tensor, vectors)).tolist()
    return {"seconds": time.perf_counter() - began, "answers": answers, "peak_mib": peak_mib()}


def classify(job: Job) -> dict[str, Any]:
    """Logistic regression on the mean vectors of the last layer."""
    from sklearn.linear_model import LogisticRegression

    tokenizer = transformers.AutoTokenizer.from_pretrained(job.weights)
    model = transformers.AutoModel.from_pretrained(job.weights)
    began = time.perf_counter()
    train, dev = (mean_vectors(model, tokenizer, x["text"], job) for x in (job.train, job.dev))
    on_top = LogisticRegression(max_iter=2000).fit(train, job.train["label"])
    scores = {"last mean": float(on_top.score(dev, job.dev["label"]))}
    return {"seconds": time.perf_counter() - began, "scores": scores, "peak_mib": peak_mib()}


def mean_vectors(model, tokenizer, texts: list[str], job: Job) -> np.ndarray:
    """The mean of the last layer over each text's tokens, (N, H)."""
    options = {"truncation": True, "max_length": job.settings["max_length"]}
    rows = as_rows(tokenizer(texts, **options))
    return np.stack(
        [
            x[: len(row["input_ids"])].mean(0)
            for x, row in zip(forward(model, rows, job), rows, strict=True)
        ]
    )


def train(model: torch.nn.Module, rows: list[dict], job: Job) -> float:
    """Trains; returns the seconds of all steps."""
    s = job.settings
    order = torch.Generator().manual_seed(job.seed)
    batches = torch.utils.data.DataLoader(
        rows, s["batch_size"], shuffle=True, generator=order, collate_fn=collate
    )
    total = len(batches) * s["epochs"]
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, s["learning_rate"], fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, total // 10, total)
    model.train()
    began, step = time.perf_counter(), 0
    for _ in range(s["epochs"]):
        for batch in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=job.bfloat16):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if job.steps is None:
                continue
            if step == UNTIMED:
                began = time.perf_counter()
            if step == UNTIMED + job.steps:
                return (time.perf_counter() - began) / job.steps * total
    return time.perf_counter() - began


def forward(model: torch.nn.Module, rows: list[dict], job: Job) -> list[np.ndarray]:
    """The logits of each row, cut to its length; of a question's window (2, T), start and end."""
    model.eval()
    batches = torch.utils.data.DataLoader(rows, EVALUATION_BATCH, collate_fn=collate)
    found = []
    for batch in batches:
        with (
            torch.inference_mode(),
            torch.autocast("cpu", torch.bfloat16, enabled=job.bfloat16),
        ):
            out = model(**batch)
        found += list(kept(out).float().numpy())
    return found


def kept(out) -> torch.Tensor:
    """What answers are made of: logits, a question's two in one, or a bare encoder's vectors."""
    if "start_logits" in out:
        return torch.stack([out.start_logits, out.end_logits], 1)  # (B, 2, T)
    return out.logits if "logits" in out else out.last_hidden_state


FILL = {"labels": IGNORED}  # other columns are padded with 0, which is BERT's [PAD] too


def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
    """Pads to the longest row of the batch; alternatives become an axis of their own."""
    batch = {}
    for name in (name for name in rows[0] if not name.startswith("_")):
        values = [row[name] for row in rows]
        if not isinstance(values[0], list):
            batch[name] = torch.tensor(values)
        elif not isinstance(values[0][0], list):
            batch[name] = pad(values, FILL.get(name, 0))  # (B, T)
        else:
            flat = pad([alternative for value in values for alternative in value], 0)
            batch[name] = flat.reshape(len(rows), -1, flat.shape[-1])  # (B, A, T)
    return batch


def pad(values: list[list[int]], fill: int) -> torch.Tensor:
    tensors = [torch.tensor(value) for value in values]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=fill)


def as_rows(encoding: transformers.BatchEncoding) -> list[dict]:
    """Of a dict of columns, a dict a row."""
    names = list(encoding)
    columns = zip(*encoding.values(), strict=True)
    return [dict(zip(names, row, strict=True)) for row in columns]


def encode_texts(tokenizer, table, job):
    texts = [table[name] for name in ("text", "first", "second") if name in table]
    options = {"truncation": True, "max_length": job.settings["max_length"]}
    rows = as_rows(tokenizer(*texts, **options))
    names = {name: index for index, name in enumerate(job.labels)}
    for row, label in zip(rows, table["label"], strict=True):
        row["labels"] = names[label] if names else float(label)
    return rows


def decode_classes(rows, logits, job):
    return [job.labels[row.argmax()] for row in logits]


def decode_values(rows, logits, job):
    return [float(row[0]) for row in logits]


def encode_words(tokenizer, table, job):
    """A word's label stands on its first piece."""
    options = {"truncation": True, "max_length": job.settings["max_length"]}
    encoding = tokenizer(table["words"], is_split_into_words=True, **options)
    rows, names = as_rows(encoding), {name: index for index, name in enumerate(job.labels)}
    for number, (row, labels) in enumerate(zip(rows, table["labels"], strict=True)):
        words = encoding.word_ids(number)
        first = [w is not None and w != before for w, before in zip(words, [None, *words[:-1]])]  # noqa: B905
        row["labels"] = [
            names[labels[w]] if new else IGNORED for w, new in zip(words, first, strict=True)
        ]
        row["_pieces"] = [
            (w, t) for t, (w, new) in enumerate(zip(words, first, strict=True)) if new
        ]
        row["_words"] = len(labels)
    return rows


def decode_words(rows, logits, job):
    """A word that was cut off has the first label."""
    answers = []
    for row, scores in zip(rows, logits, strict=True):
        labels = [job.labels[0]] * row["_words"]
        for word, position in row["_pieces"]:
            labels[word] = job.labels[scores[position].argmax()]
        answers.append(labels)
    return answers


def encode_choices(tokenizer, table, job):
    options = {"truncation": True, "max_length": job.settings["max_length"]}
    rows = []
    for context, choices, label in zip(
        table["context"], table["choices"], table["label"], strict=True
    ):
        rows.append({**tokenizer([context] * len(choices), choices, **options), "labels": label})
    return rows


def decode_choices(rows, logits, job):
    return [int(row.argmax()) for row in logits]


def encode_questions(tokenizer, table, job):
    """Windows over the context; an answer that is not all in a window is at [CLS] there."""
    encoding = tokenizer(
        table["question"],
        table["context"],
        truncation="only_second",
        max_length=job.settings["max_length"],
        stride=job.settings["doc_stride"],
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    examples = encoding.pop("overflow_to_sample_mapping")
    offsets = encoding.pop("offset_mapping")
    rows = as_rows(encoding)
    for number, row in enumerate(rows):
        example, sequence = examples[number], encoding.sequence_ids(number)
        spans = [o if s == 1 else None for o, s in zip(offsets[number], sequence, strict=True)]
        start, end = 0, 0
        if table["answers"][example]:
            first = table["answer_starts"][example][0]
            last = first + len(table["answers"][example][0])
            inside = [
                t for t, span in enumerate(spans) if span and span[0] < last and span[1] > first
            ]
            window = [span for span in spans if span]
            if inside and window[0][0] <= first and window[-1][1] >= last:
                start, end = inside[0], inside[-1]
        row |= {"start_positions": start, "end_positions": end}
        row |= {"_example": example, "_spans": spans, "_context": table["context"][example]}
    return rows


def decode_questions(rows, logits, job):
    """The best span of all windows of a question, and how much better no answer is.

    Returns:
        For each question (text, the window's best score of [CLS] less that of the span).
    """
    best: dict[int, tuple[float, str]] = {}
    null: dict[int, float] = {}
    for row, (starts, ends) in zip(rows, logits, strict=True):
        example, spans = row["_example"], row["_spans"]
        null[example] = min(null.get(example, np.inf), starts[0] + ends[0])
        inside = [t for t, span in enumerate(spans) if span]
        for start in sorted(inside, key=lambda t: -starts[t])[:BEST_TOKENS]:
            for end in sorted(inside, key=lambda t: -ends[t])[:BEST_TOKENS]:
                score = starts[start] + ends[end]
                if (
                    not start <= end < start + LONGEST_ANSWER
                    or score <= best.get(example, (-np.inf,))[0]
                ):
                    continue
                text = row["_context"][spans[start][0] : spans[end][1]]
                best[example] = (score, text)
    return [(best[e][1], null[e] - best[e][0]) if e in best else ("", np.inf) for e in sorted(null)]


@dataclasses.dataclass(frozen=True)
class Kind:
    """How transformers does a kind of task: its auto class, text to rows, logits to answers."""

    model: str
    encode: Callable
    decode: Callable
    has_labels: bool = True


KINDS = {
    "TextClassifier": Kind("SequenceClassification", encode_texts, decode_classes),
    "TextRegressor": Kind("SequenceClassification", encode_texts, decode_values),
    "TokenClassifier": Kind("TokenClassification", encode_words, decode_words),
    "QuestionAnswerer": Kind("QuestionAnswering", encode_questions, decode_questions, False),
    "MultipleChoice": Kind("MultipleChoice", encode_choices, decode_choices, False),
}
