"""Attributions of every task, against gradients of torch and against definitions."""

import json
import re

import numpy as np
import pytest

import kbert
from kbert.attribution.methods import METHODS
from kbert.edit import Rounding, adapters
from tests.harness import randomise
from tests.processes import run_code

pytestmark = pytest.mark.tensorflow
TEXTS = ["the quick brown fox jumps over the lazy dog", "a red pen, a blue book!", "x", ""]
QUIET = {"verbose": 0}


@pytest.fixture(scope="module")
def theirs(classifier, tmp_path_factory):
    """Text, method and label -> scores of tokens, by torch on transformers' classifier."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("huggingface")
    classifier.save_to_preset(folder, "huggingface")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    table = model.get_input_embeddings().weight.detach()

    def score(text, method, label, baseline="mask", steps=50):
        first, second = text if isinstance(text, tuple) else (text, None)
        inputs = {k: torch.tensor([x]) for k, x in tokenizer(first, second).items()}
        ids = inputs.pop("input_ids")
        x = table[ids]
        special = torch.isin(ids, torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id]))
        row = table[getattr(tokenizer, f"{baseline}_token_id")]
        base = torch.where(special[..., None], x, row)

        def logit(embeddings):
            return model(inputs_embeds=embeddings, **inputs).logits[0, label]

        def gradient(embeddings):
            embeddings = embeddings.detach().requires_grad_()
            return torch.autograd.grad(logit(embeddings), embeddings)[0]

        if method == "gradient_x_input":
            return (gradient(x) * x).sum(-1)[0].numpy()
        if method == "occlusion":
            scores = np.zeros(ids.shape[1])
            with torch.no_grad():
                for i in np.flatnonzero(~special[0]):
                    replaced = x.clone()
                    replaced[0, i] = row
                    scores[i] = logit(x) - logit(replaced)
            return scores
        points, weights = np.polynomial.legendre.leggauss(steps)
        total = torch.zeros_like(x)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            total += weight * gradient(base + point * (x - base))
        return (total * (x - base)).sum(-1)[0].numpy()

    return score


@pytest.mark.graphs
@pytest.mark.parametrize("method", ["integrated_gradients", "gradient_x_input", "occlusion"])
def test_scores_equal_those_of_torch(classifier, theirs, method):
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])]
    for texts in (TEXTS, pairs):
        found = kbert.attributions(classifier, texts, method=method, target="egg", **QUIET)
        assert {x.label for x in found} == {"egg"}
        for attribution, text in zip(found, texts, strict=True):
            expected = theirs(text, method, label=2)
            np.testing.assert_allclose(attribution.scores, expected, atol=1e-5)


def test_baseline_and_steps_equal_those_of_torch(classifier, theirs):
    options = {"baseline": "pad", "steps": 7}
    (found,) = kbert.attributions(classifier, TEXTS[0], target=0, **options, **QUIET)
    expected = theirs(TEXTS[0], "integrated_gradients", label=0, **options)
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)


def test_scores_sum_to_the_difference(classifier):
    found = kbert.attributions(classifier, TEXTS, **QUIET)
    answers = classifier.predict(TEXTS, verbose=0)
    assert [x.label for x in found] == [answer["label"] for answer in answers]
    assert kbert.attributions(classifier, [], **QUIET) == []
    for attribution in found[:3]:
        difference = abs(attribution.value - attribution.baseline_value)
        assert attribution.completeness_error < 0.01 * difference
    assert found[3].scores.tolist() == [0, 0]  # an empty text is its own baseline


def test_batches_do_not_change_scores(classifier):
    whole = kbert.attributions(classifier, TEXTS, **QUIET)
    for method, all_at_once in (("integrated_gradients", whole), ("occlusion", None)):
        one = kbert.attributions(classifier, TEXTS, method=method, batch_size=1, **QUIET)
        many = all_at_once or kbert.attributions(classifier, TEXTS, method=method, **QUIET)
        for a, b in zip(one, many, strict=True):
            np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)


def test_tokens_know_their_place(classifier):
    (found,) = kbert.attributions(classifier, [("the Fox!", "a quick xfox")], **QUIET)
    assert found.sides.tolist() == [-1, 0, 0, 0, -1, *[1] * 6, -1]
    for token, side, start, end in zip(
        found.tokens, found.sides, found.starts, found.ends, strict=True
    ):
        if side >= 0:
            assert found.texts[side][start:end].lower() == token.removeprefix("##")
    words = found.word_scores()
    assert [word for word, _ in words] == ["the", "Fox", "!", "a", "quick", "xfox"]
    assert sum(score for _, score in words) == pytest.approx(found.scores.sum())


def test_rollout_is_that_of_the_encoders_attention(classifier, tokenizer):
    from kbert.visualization import read_attention

    attention = read_attention(classifier, TEXTS[0])["encoder"].values.mean(1)
    for method, function in (
        ("rollout", kbert.attribution.attention_rollout),
        ("flow", kbert.attribution.attention_flow),
    ):
        found = kbert.attributions(classifier, TEXTS, method=method, **QUIET)
        expected = function(attention, np.eye(len(attention[0]))[0])
        np.testing.assert_allclose(found[0].scores, expected, atol=1e-5)


def test_a_mean_reads_all_tokens(make_task):
    task = make_task("TextClassifier", labels=2, changes={"pooling": "mean"})
    (found,) = kbert.attributions(task, "the quick fox", method="rollout", **QUIET)
    from kbert.visualization import read_attention

    attention = read_attention(task, "the quick fox")["encoder"].values.mean(1)
    expected = kbert.attribution.attention_rollout(attention, np.full(5, 0.2))
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)


def check_complete(task, data, target=None, value=None):
    """The scores sum to the difference, and every method has finite scores for its tokens."""
    (found,) = kbert.attributions(task, data, target=target, **QUIET)
    difference = abs(found.value - found.baseline_value)
    assert found.completeness_error < 0.01 * difference + 1e-5
    if value is not None:
        assert found.value == pytest.approx(value, abs=1e-4)
    for method in METHODS:
        (other,) = kbert.attributions(task, data, method=method, target=target, **QUIET)
        assert other.tokens == found.tokens
        assert np.isfinite(other.scores).all()
        if method in ("rollout", "flow"):
            assert other.scores.min() >= 0
        if method == "rollout":
            assert other.scores.sum() == pytest.approx(1, abs=1e-5)
    return found


def test_a_regressor(make_task):
    task = make_task("TextRegressor")
    check_complete(task, TEXTS[:1], value=task.predict(TEXTS[:1], verbose=0)[0])
    with pytest.raises(ValueError, match=r"target must be left out. Received: target=1"):
        kbert.attributions(task, TEXTS, target=1)


def test_several_labels(make_task):
    task = make_task("TextClassifier", labels=["a", "b", "c"], multi_label=True)
    (answer,) = task.predict(TEXTS[:1], verbose=0)
    p = max(answer["probabilities"].values())
    check_complete(task, TEXTS[:1], value=np.log(p / (1 - p)))


def test_choices(make_task):
    task = make_task("MultipleChoice")
    row = {"context": "the quick fox", "choices": ["jumps", "the moon", "a dog runs"]}
    found = check_complete(task, [row], target=1)
    assert (found.label, found.texts) == ("the moon", ("the quick fox", *row["choices"]))
    other_choices = np.isin(found.sides, [1, 3])
    assert not found.scores[other_choices].any()
    assert found.scores[found.sides == 2].all()
    assert found.tokens.count("[CLS]") == 3
    with pytest.raises(ValueError, match=r"from 0 to 2. Received: target=3"):
        kbert.attributions(task, [row], target=3)


def test_a_words_label(make_task):
    task = make_task("TokenClassifier", labels=["O", "B-name", "I-name"])
    text = "the xfox jumps, they say"
    found = check_complete(task, [text], target=(1, "B-name"))
    assert found.label == "xfox: B-name"
    assert found.words.tolist()[:4] == [-1, 0, 1, 1]
    assert found.texts[0][found.starts[2] : found.ends[2]] == "xfox"
    (by_words,) = kbert.attributions(task, {"words": [text.split()]}, target=(1, "B-name"), **QUIET)
    np.testing.assert_allclose(by_words.scores, found.scores, atol=1e-5)
    assert by_words.texts == (text,)
    (answer,) = task.predict([text], verbose=0)
    (predicted,) = kbert.attributions(task, [text], target=2, **QUIET)
    assert predicted.label == f"jumps,: {answer['labels'][2]}"
    with pytest.raises(ValueError, match=r"index of a word, from 0, or .* for 5 words"):
        kbert.attributions(task, [text])
    with pytest.raises(ValueError, match=r"by name \(O, B-name, I-name\) or index"):
        kbert.attributions(task, [text], target=(1, "X"))


def test_a_word_is_explained_in_its_window(make_task):
    task = make_task("TokenClassifier", labels=["O", "X"], max_length=10)
    text = "one two three four five big small old new man woman city king queen"
    (found,) = kbert.attributions(task, [text], target=7, **QUIET)
    words = [found.texts[0][a:b] for a, b in zip(found.starts, found.ends, strict=True) if b]
    assert len(words) == 8
    assert 2 <= words.index("old") <= 5
    assert found.label.startswith("old: ")


def test_an_answer(make_task):
    task = make_task("QuestionAnswerer", changes={"max_positions": 64})
    row = {"question": "who was it?", "context": "it was the old king, and the queen."}
    (answer,) = task.predict([row], verbose=0)
    found = check_complete(task, [row], value=answer["score"])
    assert found.label == answer["answer"]
    assert found.texts == (row["question"], row["context"])
    start = row["context"].index("old")
    wanted = check_complete(task, [row], target=(start, start + 8))
    assert wanted.label == "old king"
    nothing = check_complete(task, [row], target=(0, 0), value=answer["null_score"])
    assert nothing.label == "no answer"
    for span in ((1, 2), (start + 4, start), (-1, start + 3), "king", 5):
        with pytest.raises(ValueError, match=r"begin and end. Received: target="):
            kbert.attributions(task, [row], target=span)


def test_an_answer_is_explained_in_its_window(make_task):
    task = make_task("QuestionAnswerer", max_length=18, max_question_length=4, doc_stride=5)
    context = "one two three four five big small old new man woman city king queen sun moon"
    start = context.index("king")
    row = {"question": "who?", "context": context}
    (found,) = kbert.attributions(task, [row], target=(start, start + 4), **QUIET)
    inside = found.sides == 1
    for token, a, b in zip(
        np.array(found.tokens)[inside], found.starts[inside], found.ends[inside], strict=True
    ):
        assert context[a:b] == token
    assert "king" in found.tokens
    assert "one" not in found.tokens


def test_all_windows_of_a_text(make_task):
    task = make_task("TextClassifier", labels=2, max_length=8, doc_stride=4)
    text = "one two three four five big small old new man"
    found = check_complete(task, [text])
    assert found.tokens.count("[CLS]") == 2
    assert [found.texts[0][a:b] for a, b in zip(found.starts, found.ends, strict=True)] == [
        "" if token in ("[CLS]", "[SEP]") else token for token in found.tokens
    ]


@pytest.mark.parametrize("kind", ["text", "pair"])
def test_decoders(make_task, kind):
    config = kbert.DecoderConfig(
        vocabulary_size=145, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32,
        max_positions=40, dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    encoder = kbert.models.DecoderEncoder.extend(kbert.Decoder(config))
    task = make_task("TextRegressor", encoder)
    data = [TEXTS[0]] if kind == "text" else [(TEXTS[0], TEXTS[1])]
    found = check_complete(task, data, value=task.predict(data, verbose=0)[0])
    assert found.tokens.count("[extract]") == (1 if kind == "text" else 2)  # both orders of a pair
    if kind == "pair":
        half = len(found.tokens) // 2
        assert found.sides[1] == 0
        assert found.sides[half + 1] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"kind": "xlnet", "pooling": "last"}, id="xlnet"),
        pytest.param({"num_layer_groups": 1, "embedding_size": 8}, id="albert"),
        pytest.param({"padding_id": 0}, id="roberta"),
        pytest.param({"positions": "rotary", "attention_pattern": ("global", 4)}, id="modern"),
        pytest.param(
            {"part": {"name": "bottleneck", "width": 8, "num_feed_forwards": 2},
             "embedding_size": 8, "pooler_activation": "identity"}, id="mobilebert",
        ),
        pytest.param(
            {"part": {"name": "global_tokens"}, "attention_pattern": (4,), "num_segments": 0},
            id="longformer",
        ),
    ],
)  # fmt: skip
def test_families(make_task, changes):
    check_complete(make_task("TextClassifier", labels=2, changes=changes), TEXTS[:1])


def test_a_rounded_table_has_a_rounded_baseline(make_task):
    task = kbert.edit.quantization.quantization_aware(make_task("TextRegressor"))
    (found,) = kbert.attributions(task, "the quick fox", method="occlusion", **QUIET)
    inputs = task.build_inputs(task.encode_texts(["the quick fox"]))
    batch = {name: np.array(x) for name, x in inputs.items()}
    batch["token_ids"][0, 2] = task.tokenizer.mask_id
    masked = float(task(batch)["classifier"][0, 0])
    assert found.value - found.scores[2] == pytest.approx(masked, abs=1e-5)


def gradient_scores(task, text=TEXTS[0]):
    (found,) = kbert.attributions(task, text, method="gradient_x_input", **QUIET)
    return found.scores


def assert_graphs_are_current(task):
    """The scores equal those of newly traced graphs; returns them."""
    found = gradient_scores(task)
    del task._gated
    np.testing.assert_allclose(found, gradient_scores(task), atol=1e-6)
    return found


@pytest.mark.graphs
def test_edits_of_an_explained_task_count(make_task):
    task = make_task("TextRegressor")
    before = gradient_scores(task)
    gated = task._gated
    np.testing.assert_array_equal(gradient_scores(task), before)
    assert task._gated is gated  # nothing was traced again

    adapters.add(task, "lora", name="a", rank=2)
    randomise(task)
    adapted = assert_graphs_are_current(task)
    assert abs(adapted - before).max() > 1e-3
    adapters.add(task, "houlsby", name="b", size=4)
    assert_graphs_are_current(task)
    adapters.activate(task, "a")
    np.testing.assert_allclose(assert_graphs_are_current(task), adapted, atol=1e-6)
    adapters.remove(task, "b")
    np.testing.assert_allclose(assert_graphs_are_current(task), adapted, atol=1e-6)
    adapters.merge(task, "a")
    np.testing.assert_allclose(assert_graphs_are_current(task), adapted, atol=1e-5)

    Rounding().apply(task.encoder)
    rounded = assert_graphs_are_current(task)
    assert abs(rounded - adapted).max() > 1e-6
    task.classifier.dense.kernel.assign(2 * task.classifier.dense.kernel)
    np.testing.assert_allclose(gradient_scores(task), 2 * rounded, rtol=1e-4, atol=1e-6)


@pytest.mark.graphs
@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(kbert.edit.quantization.quantization_aware, id="rounding"),
        pytest.param(kbert.edit.pruning.with_movement, id="movement"),
        pytest.param(lambda task: kbert.edit.pruning.prune_heads(task, {0: [1]}), id="heads"),
        pytest.param(lambda task: kbert.edit.pruning.keep_layers(task, [1]), id="layers"),
        pytest.param(
            lambda task: kbert.edit.pruning.prune_vocabulary(task, texts=TEXTS)[0], id="vocabulary"
        ),
    ],
)
def test_an_edited_copy_of_an_explained_task(make_task, edit):
    task = make_task("TextRegressor")
    gradient_scores(task)
    edited = edit(task)
    (found,) = kbert.attributions(edited, TEXTS[0], steps=20, **QUIET)
    assert found.value == pytest.approx(edited.predict(TEXTS[:1], verbose=0)[0], abs=1e-5)
    assert found.completeness_error < 0.01 * abs(found.value - found.baseline_value) + 1e-4


def test_an_ensemble_is_refused(make_task):
    ensemble = kbert.Ensemble([make_task("TextRegressor"), make_task("TextRegressor")])
    with pytest.raises(ValueError, match=r"`members`. Received: an ensemble of 2 TextRegressors"):
        kbert.attributions(ensemble, TEXTS)
    assert not kbert.attribution.has_default_target(ensemble)
    (found,) = kbert.attributions(ensemble.members[1], TEXTS[:1], method="occlusion", **QUIET)
    assert np.isfinite(found.scores).all()


def test_a_task_is_left_as_it_was(classifier):
    before = [weight.path for weight in classifier.weights]
    answers = classifier.predict(TEXTS, verbose=0)
    with pytest.raises(ValueError, match=r"one for each example. Received: 1 targets for 4"):
        kbert.attributions(classifier, TEXTS, target=["ham"])
    kbert.attributions(classifier, TEXTS, target=["ham", "spam", "egg", 0], **QUIET)
    assert [weight.path for weight in classifier.weights] == before
    assert classifier.encoder.embeddings.edits == []
    assert classifier.predict(TEXTS, verbose=0) == answers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "lime"}, "must be one of integrated_gradients, .*Received: method='lime'"),
        ({"method": "rollout", "baseline": "pad"}, "only for integrated_gradients and occlusion"),
        ({"method": "occlusion", "steps": 5}, "only for integrated_gradients. Received: steps=5"),
        ({"steps": 0}, "1 or more, and is only .*Received: steps=0"),
        ({"steps": 2.5}, "whole number of 1 or more.*Received: steps=2.5"),
        ({"baseline": "noise"}, "must be mask, pad or zero.*Received: baseline='noise'"),
        ({"target": "x"}, r"by name \(ham, spam, egg\) or index. Received: 'x'"),
        ({"batch_size": 0}, "batch_size must be"),
    ],
    ids=["method", "baseline of attention", "steps of occlusion", "no steps", "half a step",
         "baseline", "label", "batch"],
)  # fmt: skip
def test_arguments_that_are_refused(classifier, options, message):
    with pytest.raises(ValueError, match=message):
        kbert.attributions(classifier, TEXTS, **options, **QUIET)


def test_tasks_that_are_refused(make_task, tokenizer):
    embedder = make_task("TextEmbedder")
    with pytest.raises(ValueError, match=r"kinds classify, .*Received: a TextEmbedder"):
        kbert.attributions(embedder, TEXTS)
    config = kbert.Seq2SeqConfig(
        vocabulary_size=145, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32
    )
    encoder = kbert.models.Seq2SeqEncoder(kbert.Seq2Seq(config))
    task = make_task("TextClassifier", encoder, labels=2)
    with pytest.raises(ValueError, match=r"one table .*TextClassifier on a Seq2SeqEncoder"):
        kbert.attributions(task, TEXTS)


def test_a_page_and_json(classifier, tmp_path):
    found = kbert.attributions(classifier, ["<b> the red fox", "x"], **QUIET)
    found.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<figure") == 2
    assert "<b>" not in page
    assert "http" not in page
    assert found._repr_html_().count("<figure") == 2
    record = json.loads(json.dumps(found[0].to_dict()))
    assert record["tokens"] == found[0].tokens
    assert set(record) == {
        *("label", "value", "method", "baseline_value", "scores"),
        *("sides", "starts", "ends", "tokens"),
    }
    assert re.match(r"Attribution\(\w+ \(.*\), integrated gradients, 8 tokens\)", repr(found[0]))


@pytest.mark.slow
def test_jax_gives_the_same_scores(classifier, tmp_path):
    classifier.save_to_preset(tmp_path / "task")
    code = f"""
import sys
sys.modules.pop("jax", None)
import json, kbert
task = kbert.TextClassifier.from_preset({str(tmp_path / "task")!r})
for method in {list(METHODS)!r}:
    steps = 8 if method == "integrated_gradients" else None
    found = kbert.attributions(task, {TEXTS!r}, method=method, steps=steps, verbose=0)
    print(json.dumps([x.scores.tolist() for x in found]))
"""
    lines = run_code(code, KERAS_BACKEND="jax").splitlines()[-len(METHODS) :]
    for method, line in zip(METHODS, lines, strict=True):
        steps = 8 if method == "integrated_gradients" else None
        found = kbert.attributions(classifier, TEXTS, method=method, steps=steps, **QUIET)
        for attribution, expected in zip(found, json.loads(line), strict=True):
            np.testing.assert_allclose(attribution.scores, expected, atol=1e-4)
