"""`kbert-pretrain --recipe`: defaults that flags override, and a whole run of ELECTRA's."""

import json

import numpy as np
import pytest
from absl import flags

import kbert
from pipelines.flags import apply_recipe, departures
from pipelines.masked_text import read_config, task_builder
from tests.killing import ends_before, signalled
from tests.pipelines.test_pretrain import arguments, pretrain, write_corpus
from tests.processes import ends_well, start_program


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, tiny_vocabulary):
    return write_corpus(tmp_path_factory.mktemp("corpus"), tiny_vocabulary)


def test_a_recipe_sets_what_is_not_given(parse):
    options = parse("--recipe=roberta", "--batch_size=32", "--learning_rate=1e-4")
    chosen = apply_recipe(options)
    assert options.model == "roberta-base"
    assert options.segments == "full_sentences"
    assert (options.beta_2, options.bias_correction, options.decay_join) == (0.98, True, "after")
    assert (options.steps, options.warmup_steps) == (125_000, 10_000)
    assert (options.phases, options.clip_norm) == ("512:1", 0.0)
    assert (options.batch_size, options.learning_rate) == (32, 1e-4)  # as given
    assert departures(options, chosen) == ["learning_rate=0.0001 (0.0005)", "batch_size=32 (2048)"]


def test_a_shorter_run_warms_up_for_a_tenth(parse):
    options = parse("--recipe=albert", "--steps=1000")
    apply_recipe(options)
    assert options.warmup_steps == 100
    options = parse("--steps=1000000")
    assert apply_recipe(options) is None
    assert options.warmup_steps == 10_000
    options = parse("--steps=100", "--warmup_steps=7")
    apply_recipe(options)
    assert options.warmup_steps == 7


@pytest.mark.parametrize("key", ["settings", "flags"])  # "flags" before 1.0.0
def test_a_run_that_is_made_longer_keeps_its_warm_up(parse, tmp_path, key):
    (tmp_path / "run.json").write_text(f'{{"{key}": {{"warmup_steps": 100, "steps": 1000}}}}')

    def warmup(*arguments):
        options = parse(f"--model_dir={tmp_path}", "--steps=2000", *arguments)
        apply_recipe(options)
        return options.warmup_steps

    assert warmup() == 200
    assert warmup("--allow_changes=seed,steps") == 100
    assert warmup("--allow_changes=steps", "--warmup_steps=7") == 7
    assert warmup("--allow_changes=steps", f"--model_dir={tmp_path / 'new'}") == 200


def test_a_length_takes_the_place_of_phases(parse):
    options = parse("--recipe=bert", "--sequence_length=64")
    chosen = apply_recipe(options)
    assert options.phases is None
    assert departures(options, chosen) == ["sequence_length=64 (128:0.9,512:0.1)"]


def test_elmo_reads_words_and_masks_nothing(parse):
    options = parse("--recipe=elmo", "--model=elmo-small", "--batch_size=64")
    chosen = apply_recipe(options)
    assert (options.optimizer, options.initial_accumulator_value) == ("adagrad", 1.0)
    assert (options.decay, options.warmup_steps, options.clip_norm) == ("constant", 0, 10.0)
    assert (options.phases, options.negatives, options.steps) == ("20:1", 8192, 1_000_840)
    # What the recipe has nothing to say about keeps its default, whatever else is chosen then.
    assert (options.beta_1, options.generator_share) == (0.9, 0.25)
    assert departures(options, chosen) == [
        "model=elmo-small (elmo-original)",
        "batch_size=64 (384)",
    ]


def test_a_recipe_sets_values_of_the_model(parse):
    options = parse("--recipe=kbert-fast", "--steps=500")
    chosen = apply_recipe(options)
    assert options.set == ["dropout=0", "attention_dropout=0", "positions=rotary"]
    assert options.warmup_steps == 50
    assert departures(options, chosen) == ["warmup_steps=50 (1000)", "steps=500 (10000)"]
    options = parse("--recipe=kbert-fast", "--set=dropout=0.1")
    chosen = apply_recipe(options)
    assert departures(options, chosen) == [
        "set=['dropout=0.1'] (['dropout=0', 'attention_dropout=0', 'positions=rotary'])"
    ]


def test_a_recipe_can_be_left_for_another_optimizer(parse):
    options = parse("--recipe=bert", "--optimizer=adagrad")
    apply_recipe(options)
    assert options.initial_accumulator_value == 1.0


def test_steps_come_from_somewhere(parse):
    with pytest.raises(ValueError, match="--steps or --recipe must be given"):
        apply_recipe(parse())


def test_every_recipe_names_a_task(parse, tiny_vocabulary):
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    kinds = {}
    for name in ("bert", "roberta", "albert", "spanbert", "electra"):
        options = parse(f"--recipe={name}")
        apply_recipe(options)
        small = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}
        config = read_config(options.model, {"embedding_size": None, **small}, tokenizer)
        task = task_builder(options)(kbert.Encoder(config), tokenizer)
        kinds[name] = type(task).__name__, task.settings
    electra = {"discriminator_weight": 50.0, "embedding_sharing": "all"}
    assert kinds["electra"] == ("ReplacedTokenDetection", electra)
    assert {name: settings for name, (kind, settings) in kinds.items() if name != "electra"} == {
        "bert": {"next_sentence": True, "sentence_order": False, "span_boundary": False},
        "roberta": {"next_sentence": False, "sentence_order": False, "span_boundary": False},
        "albert": {"next_sentence": False, "sentence_order": True, "span_boundary": False},
        "spanbert": {"next_sentence": False, "sentence_order": False, "span_boundary": True},
    }


def test_an_unknown_recipe_is_refused(parse):
    with pytest.raises(flags.IllegalFlagValueError, match=r"one of <bert\|bert-wwm\|roberta\|"):
        parse("--recipe=elektra")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["electra", "deberta-v3"])
def test_electra_is_killed_resumes_and_is_written(data_dir, tmp_path, name):
    narrow = ("--set=embedding_size=8", "--generator_share=0.5")
    electra = (f"--recipe={name}", *(narrow if name == "electra" else ()))
    electra += ("--checkpoint_every=2", "--evaluate_every=6", "--evaluation_steps=2")
    out = ends_well(pretrain(data_dir, tmp_path / "whole", *electra))
    assert f"recipe {name}: " in out
    assert f"batch_size=8 ({128 if name == 'electra' else 8192})" in out
    assert "rtd_loss" in out

    broken = pretrain(data_dir, tmp_path / "broken", *electra, before=signalled())
    ends_before(broken, tmp_path / "broken", last_step=12)
    preset, exported = tmp_path / "preset", tmp_path / "export"
    finals = (f"--preset_dir={preset}", f"--export_dir={exported}")
    ends_well(pretrain(data_dir, tmp_path / "broken", *electra, *finals))
    for file in ("steps.jsonl", "evaluations.jsonl"):
        whole, again = (tmp_path / run / file for run in ("whole", "broken"))
        assert whole.read_text() == again.read_text()
    record = json.loads((tmp_path / "whole" / "run.json").read_text())
    resolved = {**record["command"], **record["settings"]}
    told = [resolved[x] for x in ("objective", "masking", "embedding_sharing", "decay_join")]
    assert (
        told
        == {
            "electra": ["replaced_tokens", "independent", "all", "product"],
            "deberta-v3": ["replaced_tokens", "token", "gradient_disentangled", "switch"],
        }[name]
    )
    assert resolved["batch_size"] == 8

    task = kbert.tasks.ReplacedTokenDetection.from_preset(preset)
    (answer,) = task.predict(["the quick fox"])
    assert answer["tokens"] == ["the", "quick", "fox"]
    assert np.isfinite(answer["probabilities"]).all()
    assert (exported / "1" / "saved_model.pb").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["roberta", "albert", "spanbert", "modernbert", "xlnet", "gpt-bert", "unilm"]
)
def test_every_recipe_trains(data_dir, tmp_path, name):
    out = ends_well(pretrain(data_dir, tmp_path / "run", f"--recipe={name}"))
    assert "step 12/12 · loss" in out
    assert f"recipe {name}: " in out
    log = (tmp_path / "run" / "steps.jsonl").read_text().splitlines()
    terms = {"albert": "sop_loss", "spanbert": "sbo_loss", "xlnet": "plm_loss"}
    assert len(log) == 12
    assert terms.get(name, "mlm_loss") in json.loads(log[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xlnet", "gpt-bert", "unilm"])
def test_a_killed_run_goes_on_to_the_same_weights(data_dir, tmp_path, name):
    """Orders, causal rows, the share of masks and the moving average resume exactly."""
    flags = (f"--recipe={name}", "--checkpoint_every=2", "--set=embedding_size=null")
    for run in ("whole", "broken"):
        preset = (*flags, f"--preset_dir={tmp_path / run}-preset")
        if run == "broken":
            process = pretrain(data_dir, tmp_path / run, *preset, before=signalled())
            ends_before(process, tmp_path / run, last_step=12)
        ends_well(pretrain(data_dir, tmp_path / run, *preset))
    whole, broken = ((tmp_path / run / "steps.jsonl").read_text() for run in ("whole", "broken"))
    assert whole == broken
    one, other = (
        kbert.tasks.Task.from_preset(tmp_path / f"{run}-preset") for run in ("whole", "broken")
    )
    for mine, theirs in zip(one.weights, other.weights, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=mine.path)


@pytest.mark.slow
def test_xlm_r_reads_a_folder_for_each_language(data_dir, tmp_path, call, tiny_vocabulary):
    from pipelines import pretrain as program

    other = write_corpus(tmp_path, tiny_vocabulary)
    flags = ("--recipe=xlm-r", "--phases=16:1", "--steps=2")
    call(program, *arguments(f"{data_dir},{other}", tmp_path / "run", *flags))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["command"]["mixture_temperature"] == 0.3
    with pytest.raises(SystemExit, match="requires several folders in --data_dir"):
        call(program, *arguments(data_dir, tmp_path / "one", *flags))


@pytest.mark.slow
def test_xlm_reads_translations_beside_other_text(data_dir, tmp_path, call, tiny_vocabulary):
    from pipelines import prepare_corpus, pretrain as program

    rng = np.random.default_rng(0)
    words = [word for word in tiny_vocabulary if word.isalpha() and len(word) > 1]
    for side in ("source", "target"):
        lines = (" ".join(rng.choice(words, rng.integers(2, 6))) for _ in range(80))
        (tmp_path / side).write_text("\n".join(lines) + "\n")
    (tmp_path / "vocab.txt").write_text("\n".join(tiny_vocabulary) + "\n")
    call(
        prepare_corpus,
        *(f"--input={tmp_path / 'source'}", f"--target={tmp_path / 'target'}"),
        *(f"--vocabulary={tmp_path / 'vocab.txt'}", f"--output_dir={tmp_path / 'pairs'}"),
    )
    folders = f"{data_dir},{tmp_path / 'pairs'}"
    flags = ("--recipe=xlm", "--phases=16:1", "--steps=2", "--pack")
    call(program, *arguments(folders, tmp_path / "run", *flags))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["settings"]["segments"] == "aligned"
    assert record["command"]["mixture_temperature"] == 0.7
    alone = (*flags, "--mixture_temperature=1")
    with pytest.raises(SystemExit, match='segments="aligned" is required'):
        call(program, *arguments(data_dir, tmp_path / "alone", *alone))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--objective=unilm"], "requires --segments=consecutive, whose.*--segments=pairs"),
        (["--attention_shares=1,1,1,1"], "masked_lm does not support .*attention_shares"),
        (
            ["--recipe=unilm", "--set=num_segments=2"],
            "must have num_segments=6, .*Received: num_segments=2",
        ),
        (["--recipe=unilm", "--attention_shares=1,1"], "attention_shares.*a sequence of 4"),
    ],
    ids=["segments", "objective", "number of segments", "two shares"],
)
def test_flags_of_unilm_that_do_not_fit(data_dir, tmp_path, call, flags, message):
    from pipelines import pretrain as program

    with pytest.raises(SystemExit, match=message):
        call(program, *arguments(data_dir, tmp_path, *flags))


def test_a_head_without_its_data_is_told_in_one_line(data_dir, tmp_path, call):
    from pipelines import pretrain as program

    with pytest.raises(
        SystemExit, match=r"^kbert-pretrain: --objective=span_boundary requires --masking=span"
    ):
        call(program, *arguments(data_dir, tmp_path, "--objective=span_boundary"))


@pytest.mark.parametrize(
    "recipe",
    ["electra"]
    + [
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            *("bert", "roberta", "albert", "spanbert", "modernbert", "xlnet", "gpt-bert"),
            "unilm",
        )
    ],
)
def test_every_recipe_with_masks_trains_on_packed_rows(data_dir, tmp_path, call, recipe):
    from pipelines import pretrain

    run = tmp_path / "run"
    flags = (f"--recipe={recipe}", "--pack", "--phases=48:1", "--steps=3", "--batch_size=4")
    if recipe == "xlnet":  # which packs rows that remember none
        flags += ("--segments=consecutive", "--memory_length=0", "--set=embedding_size=null")
    else:
        flags += ("--set=embedding_size=16",)
    call(pretrain, *arguments(data_dir, run), *flags)
    losses = [json.loads(line)["loss"] for line in (run / "steps.jsonl").read_text().splitlines()]
    assert len(losses) == 3
    assert np.isfinite(losses).all()
    assert json.loads((run / "run.json").read_text())["settings"]["pack"] is True


SENTENCES = [
    "使用语言模型来预测下一个词的概率",
    "语言模型的概率是下一个词的概率",
    "我们使用模型来预测语言",
]


@pytest.fixture(scope="module")
def chinese(tmp_path_factory):
    """Shards of Chinese sentences; words and an entity as lexicons beside them."""
    folder = tmp_path_factory.mktemp("chinese")
    rng = np.random.default_rng(0)
    documents = ["。\n".join(rng.choice(SENTENCES, 8)) + "。" for _ in range(200)]
    (folder / "text.txt").write_text("\n\n".join(f"{n % 10} {d}" for n, d in enumerate(documents)))
    characters = sorted(set("".join(documents)) - {"\n"})
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = kbert.WordPieceTokenizer([*specials, *"0123456789", *characters])
    kbert.data.prepare_corpus(str(folder / "text.txt"), folder / "shards", tokenizer)
    (folder / "words.txt").write_text("使用\n语言\n模型\n预测\n一个\n概率\n我们\n")
    (folder / "names.txt").write_text("语言模型\n")
    return folder


def ernie(chinese, run, *flags):
    phrases = f"--phrases=,{chinese}/words.txt,{chinese}/names.txt"
    stages = ("--phases=24:0.5,24:0.25,24:0.25", "--recipe=ernie", phrases)
    return arguments(chinese / "shards", run, *stages, *flags)


@pytest.mark.slow
def test_ernie_is_killed_between_stages_and_resumes(chinese, tmp_path, call):
    from pipelines import pretrain as program

    flags = "--checkpoint_every=2"
    for run in ("whole", "again"):
        command = ernie(chinese, tmp_path / run, flags)
        if run == "again":
            process = start_program("pretrain", *command, before=signalled())
            ends_before(process, tmp_path / run, last_step=12)
        ends_well(start_program("pretrain", *command))
    whole, again = ((tmp_path / run / "steps.jsonl").read_text() for run in ("whole", "again"))
    assert len(whole.splitlines()) == 12
    assert whole == again
    # Another lexicon is other data: the run is not resumed with it.
    names = chinese / "names.txt"
    kept = names.read_text()
    names.write_text("语言模型\n下一个词\n")
    try:
        with pytest.raises(SystemExit, match="phrases_checksum"):
            call(program, *ernie(chinese, tmp_path / "whole", flags))
    finally:
        names.write_text(kept)


@pytest.mark.slow
def test_ernie_learns_more_than_the_most_frequent_character(chinese, tmp_path, call):
    from pipelines import pretrain as program

    changes = ("--steps=400", "--learning_rate=3e-3", "--set=hidden_size=32")
    call(program, *ernie(chinese, tmp_path / "run", *changes, "--batch_size=16"))
    lines = (tmp_path / "run" / "steps.jsonl").read_text().splitlines()[-20:]
    text = "".join((chinese / "text.txt").read_text().split())
    most = max(text.count(c) for c in set(text)) / len(text)
    accuracy = np.mean([json.loads(line)["mlm_accuracy"] for line in lines])
    assert accuracy > 1.5 * most
