"""The ranks of the library: a module imports from lower ranks or its own subpackage, never up."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RANKS = {
    "core": -4,
    "io": -3,
    "version": -2,
    "configs": -2,
    "catalog": -1.5,
    **dict.fromkeys(("doctor", "hub"), -1),
    **dict.fromkeys(("tokenizers", "text", "metrics"), 0),
    **dict.fromkeys(("layers", "data", "checkpoints", "signatures", "decoding"), 1),
    "inference": 1.5,
    **dict.fromkeys(("models", "heads", "search", "training"), 2),
    **dict.fromkeys(("tasks", "word_vectors"), 3),
    **dict.fromkeys(("conversion", "visualization", "__init__"), 4),
    "edit": 3.2,
    "extraction": 3.9,
    "analysis": 3.95,
    "export": 4,
    "attribution": 4.1,
    "experiments": 4.2,
    **dict.fromkeys(("distillation", "serve"), 5),
}
# Inside a subpackage: what stands in a line imports from the lines above it alone (and, a
# subfolder, from itself). So no two subfolders lean on each other.
ORDER = {
    "analysis": """
        probing surfaces syntax
    """,
    "core": """
        devices finite in_memory late layer_choice options ragged text_table types
        contexts graphs protocols registry
    """,
    "attribution": """
        attention_graph gate targets
        methods result
        explain
    """,
    "catalog": """
        distillation glue recipe repositories rows super_glue
        encoders seq2seqs
        decoders
        families named_tasks recipes
    """,
    "checkpoints": """
        checkpoint renames sizes vocabulary
        groups hdf5 keys pytorch
        preset
        bilm huggingface keras_hub
        fairseq google
        folder
    """,
    "configs": """
        base
        transformer
        decoder elmo encoder seq2seq
        awd_lstm reformer static universal_transformer xlnet
        transformer_xl
    """,
    "conversion": """
        heads lengthening
        checking
        converting
    """,
    "data": """
        masking pipeline position unreadable
        corpus
        tables
        pretraining readers translation
        denoising
    """,
    "decoding": """
        constraints noise
        constraining methods
        request
        beam_search choice generation_config options single
        loop
        streaming
    """,
    "distillation": """
        augmentation comparison layer_maps losses reading shrinking static student_model
        terms
        transfer
        cache comparable published
        distiller
        experiment several_tasks
    """,
    "experiments": """
        readers records results settings
        catalogue folder
        evaluation reading
        answer_file experiment
        answering beam multi_task previews single_run
        combining
        series
    """,
    "edit": """
        base
        adapters movement pruned rounding
        pruning
        quantization
    """,
    "export": """
        array_answers folder savedmodel tensorflow_copy text_to_rows
        elmo exported features litert onnx openvino runtime_task text_graphs
        task
    """,
    "extraction": """
        files inputs plan pooling
        described readers
        extractor
        extract
        bertscore cosines text_features write
    """,
    "heads": """
        discriminator linear token_features
        masked_lm
        span_boundary
    """,
    "hub": """
        archive snapshot
        download presets
    """,
    "inference": """
        batches forward texts
        runner
    """,
    "io": """
        chunks paths progress
        fingerprints json_file npy
        atomic formats
        arrays outputs
    """,
    "layers": """
        bias fused gather highway ids mean_max_pooling scalar_mix scan slots
            text_preprocessor
        activations dropout positions recompute token_embeddings
        character_cnn chunked_attention dense normalization recurrence word_softmax
        adaptive attention bidirectional_lstm block embeddings feed_forward
        relative_bias
    """,
    "metrics": """
        checks thresholds
        bleu classification clustering correlation entities pairs report retrieval
        rouge squad
        multi_label
    """,
    "models": """
        blocks edits initial_values inputs_and_outputs memory pooling weights
        keras_model parts
        bart convbert deberta ernie from_config longformer mobilebert mpnet
        squeezebert t5
        elmo encoder
        awd_lstm captured_outputs generators initial_attention reformer static
        universal_transformer xlnet
        transformer_xl
        description
    """,
    "search": """
        exact
        stores
        index
        negatives reranking
    """,
    "serve": """
        client http
        demo service
    """,
    "signatures": """
        requests runtime_model
        rows
        row_export
    """,
    "tasks": """
        columns dataset_objective file_answers input_form loading losses settings
        steps_objective token_losses
        corpus_objective
        corpora
        task
        encoder_task
        fine_tuning pretraining
        embedding generation question_answering
    """,
    "text": """
        chinese sentences source
        files tfds
        documentation
        columnar
        sources
        pair_readers
        pairs
    """,
    "tokenizers": """
        arrays batching folder kinds lines packing text_ops
        normalization
        offsets serializable word_counts
        base
        token_segments
        bpe unigram wordpiece
        gpt loading_keras_hub marian words
        loading training
    """,
    "training": """
        hosts layout optimization precision
        step
        strategies
        run
    """,
    "visualization": """
        attention_reading canvas
        attention_page flow learning_curve matrices names positions probes scores sizes
        surfaces
        answers attention_drawing token_scores trade_off vectors
        report_page
    """,
    "word_vectors": """
        formats
        fasttext
        vectors
        corpus learner
        options
        glove negative_sampling
        training
    """,
}
# `import kbert` and its subpackages must not pull these in: they load inside functions.
HEAVY = {
    "keras_hub", "keras_nlp", "tensorflow_datasets", "tokenizers", "sentencepiece", "safetensors",
    "huggingface_hub", "torch", "jax", "transformers", "matplotlib", "pandas", "tqdm", "scipy",
    "sklearn", "seqeval", "sacrebleu", "apache_beam", "onnx", "onnxruntime", "tf2onnx", "openvino",
    "nncf", "ai_edge_litert", "onnxruntime_extensions", "openvino_tokenizers", "faiss", "umap",
    "starlette", "uvicorn", "orjson", "msgpack", "prometheus_client", "grpc", "tensorflow_serving",
    "pyarrow",
}  # fmt: skip
# keras.ops alone, so that these also run on the JAX and PyTorch backends.
BACKEND_FREE = ("layers", "edit", "heads", "models", "decoding")


def modules() -> list[Path]:
    return sorted((ROOT / "kbert").rglob("*.py"))


def subpackage(parts: tuple[str, ...]) -> str:
    """("kbert", "data", "pairs") -> "data"; ("kbert",) -> "__init__"."""
    return parts[1] if len(parts) > 1 else "__init__"


def levels(name: str) -> dict[str, int]:
    """Its files and subfolders -> the line they stand in. A deeper line is more indented."""
    lines = []
    for line in ORDER[name].strip("\n").splitlines():
        if line.startswith("           "):
            lines[-1] += line
        else:
            lines.append(line)
    return {unit: level for level, line in enumerate(lines) for unit in line.split()}


def imported(tree: ast.AST) -> list[tuple[str, ...]]:
    """Every import in the tree, inside functions too, as module parts.

    `from kbert.data import x` is kbert.data.x where there is such a module, else kbert.data; and
    `import_module("kbert.data")` is one.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; write it absolute"
            parts = tuple(node.module.split("."))
            whole = [(*parts, alias.name) for alias in node.names]
            found += [path if parts == ("kbert",) or is_module(path) else parts for path in whole]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            name = node.args[0]
            if isinstance(name, ast.Constant):
                found.append(tuple(name.value.split(".")))
            elif isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
                found.append(tuple(name.values[0].value.rstrip(".").split(".")))
    return found


def is_module(parts: tuple[str, ...]) -> bool:
    path = ROOT.joinpath(*parts)
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def rising(source: str, parts: tuple[str, ...]) -> list[str]:
    """The imports of a module that run up or sideways, between subpackages or inside its own."""
    own = subpackage(parts)
    assert own in RANKS, f"{own} has no rank: add it to RANKS and to the design"
    found = []
    for target in imported(ast.parse(source)):
        if target[0] in ("pipelines", "tests", "benchmarks") or target[:2] == (
            "kbert",
            "pipelines",
        ):
            found.append(f"imports {target}")
        if target[0] != "kbert" or subpackage(target) not in RANKS:
            continue
        if subpackage(target) != own:
            if RANKS[subpackage(target)] >= RANKS[own]:
                found.append(f"{own} imports up or sideways: {target}")
        elif own in ORDER and len(parts) > 2:  # not the subpackage's __init__
            order = levels(own)
            assert parts[2] in order, f"{own}/{parts[2]} stands in no line of ORDER"
            if len(target) < 3:
                found.append(f"{own}/{parts[2]} imports its own subpackage's __init__")
            elif target[2] != parts[2] and order[target[2]] >= order[parts[2]]:
                found.append(f"{own}/{parts[2]} imports up or sideways: {target}")
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_down_only(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    if parts == ("kbert",):
        return  # public names, loaded on first use
    assert rising(path.read_text(encoding="utf-8"), parts) == []


def test_order_lists_what_is_there():
    for name in ORDER:
        there = {
            p.stem for p in (ROOT / "kbert" / name).iterdir() if is_module(("kbert", name, p.stem))
        }
        assert set(levels(name)) == there - {"__init__"}, name


@pytest.mark.parametrize(
    "path",
    # `jax.py` is the JAX engine's half of the step, imported on that backend alone.
    [p for p in modules() if p.stem != "jax"],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_heavy_modules_load_inside_functions(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], [])
    assert not {target[0] for target in imported(top)} & HEAVY


@pytest.mark.parametrize(
    "path",
    # `fused.py` is what TensorFlow computes in the place of the layers' keras.ops.
    [
        p
        for p in modules()
        if subpackage(p.relative_to(ROOT).parts) in BACKEND_FREE and p.stem != "fused"
    ],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_model_code_is_backend_free(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], [])
    assert not {target[0] for target in imported(top)} & {"tensorflow", "tensorflow_text"}


@pytest.mark.parametrize(
    ("source", "own"),
    [
        ("from kbert.tasks import Pretraining", "kbert.data.tables.table"),
        ("import kbert.models.encoder", "kbert.layers.block"),
        ("def f():\n    from kbert.tasks import Pretraining", "kbert.training.strategies"),
        ("importlib.import_module('kbert.tasks')", "kbert.models.encoder"),
        ("import_module(f'kbert.tasks.{name}')", "kbert.models.encoder"),
        ("from kbert.data.readers import tables", "kbert.data.tables.table"),
        ("from kbert.data import readers", "kbert.data.tables.table"),
        ("from kbert.tasks import Task", "kbert.tasks.encoder_task"),
        ("from kbert.models import Encoder", "kbert.training.strategies"),
        ("from pipelines import pretrain", "kbert.experiments.run"),
    ],
)
def test_a_rising_import_would_be_caught(source, own):
    assert len(rising(source, tuple(own.split(".")))) == 1


def test_falling_imports_pass():
    source = "from kbert.data.tables import table\nfrom kbert.training import AdamW\nimport keras"
    assert rising(source, ("kbert", "tasks", "task")) == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem
)
def test_benchmarks_import_names_that_are_there(path):
    """No other test runs most of them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kbert"):
            module = importlib.import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or is_module(
                    (*node.module.split("."), name.name)
                ), f"line {node.lineno}: {node.module} has no {name.name}"


def test_every_public_name_resolves_and_loads_nothing_heavy():
    code = (
        "import sys, tensorflow, tensorflow_text, keras\n"
        "before = set(sys.modules)\n"  # TensorFlow itself imports JAX and SciPy where they are
        "import kbert\n"
        "for name in kbert.__all__: getattr(kbert, name)\n"
        f"print(sorted((set(sys.modules) - before) & {HEAVY!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_floors_load_neither_tensorflow_nor_keras():
    """A wrong flag and a missing file are told at once, and a user of JAX needs no TensorFlow."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for room in ("core", "io", "catalog", "configs")
        for path in sorted((ROOT / "kbert" / room).glob("[a-z]*.py"))
    ]
    assert len(names) > 25
    code = (
        "import importlib, sys\n"
        "sys.modules |= dict.fromkeys(('tensorflow', 'keras', 'tensorflow_text'))\n"  # None blocks
        f"for name in {names!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


# Modules of kbert that an import loads -> how many at most.
BUDGETS = {
    "kbert.training.run.run": 60,
    "kbert.models.encoder": 90,
    "kbert.tasks.fine_tuning.text_classifier": 200,
}


def test_an_import_loads_few_modules():
    """Each in a process of its own, forked from one that has loaded what is not kbert's."""
    code = (
        "import os, sys, importlib, tensorflow, tensorflow_text, keras\n"
        f"for name in {list(BUDGETS)!r}:\n"
        "    if not os.fork():\n"
        "        importlib.import_module(name)\n"
        "        count = sum(x.split('.')[0] == 'kbert' for x in sys.modules)\n"
        "        print(name, count, flush=True)\n"
        "        os._exit(0)\n"
        "    assert os.wait()[1] == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
    assert found.keys() == BUDGETS.keys()
    assert {x: n for x, n in found.items() if n > BUDGETS[x]} == {}
