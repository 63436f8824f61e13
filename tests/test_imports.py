"""The ranks of the library: a module imports from lower ranks or from its own room, never up."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RANKS = {
    **dict.fromkeys(("atomic", "cache"), -2),
    **dict.fromkeys(("hub", "config"), -1),
    **dict.fromkeys(("version", "elmo_config", "tokenizers", "text", "metrics"), 0),
    **dict.fromkeys(("decoder_config", "seq2seq_config"), 0),
    **dict.fromkeys(("layers", "data", "checkpoints", "serving", "decoding"), 1),
    **dict.fromkeys(("models", "heads", "training"), 2),
    "tasks": 3,
    **dict.fromkeys(("conversion", "visualization", "recipes", "__init__"), 4),
    **dict.fromkeys(("extraction", "finetuning"), 4),
    "distillation": 5,
}
# `import kbert` and its rooms must not pull these in: they load inside functions.
HEAVY = {
    "keras_hub", "keras_nlp", "tensorflow_datasets", "tokenizers", "sentencepiece", "safetensors",
    "huggingface_hub", "torch", "jax", "transformers", "matplotlib", "pandas", "tqdm", "scipy",
    "sklearn", "seqeval", "sacrebleu",
}  # fmt: skip
# keras.ops alone, so that these also run on the JAX and PyTorch backends.
BACKEND_FREE = ("layers", "heads", "models", "decoding")


def modules() -> list[Path]:
    return sorted((ROOT / "kbert").rglob("*.py"))


def room(parts: tuple[str, ...]) -> str:
    """("kbert", "data", "pairs") -> "data"; ("kbert",) -> "__init__"."""
    return parts[1] if len(parts) > 1 else "__init__"


def imported(tree: ast.AST) -> list[tuple[str, ...]]:
    """Every import in the tree, as module parts. `from kbert import x` counts as kbert.x."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; write it absolute"
            parts = tuple(node.module.split("."))
            found += [(*parts, a.name) for a in node.names] if parts == ("kbert",) else [parts]
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_down_only(path):
    own = room(path.relative_to(ROOT).with_suffix("").parts)
    assert own in RANKS, f"{own} has no rank: add it to RANKS and to the design"
    for target in imported(ast.parse(path.read_text(encoding="utf-8"))):
        assert target[0] not in ("pipelines", "tests", "benchmarks"), f"imports {target}"
        if target[0] != "kbert" or room(target) == own or room(target) not in RANKS:
            continue
        assert RANKS[room(target)] < RANKS[own], f"{own} imports up or sideways: {target}"


@pytest.mark.parametrize(
    "path",
    # `*_jax.py` is the JAX engine's half of a module, imported on that backend alone.
    [p for p in modules() if not p.stem.endswith("_jax")],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_heavy_modules_load_inside_functions(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], [])
    assert not {target[0] for target in imported(top)} & HEAVY


@pytest.mark.parametrize(
    "path",
    [p for p in modules() if room(p.relative_to(ROOT).parts) in BACKEND_FREE],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_model_code_is_backend_free(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], [])
    assert not {target[0] for target in imported(top)} & {"tensorflow", "tensorflow_text"}


def test_a_rising_import_would_be_caught():
    tree = ast.parse("from kbert.tasks import Pretraining\nimport kbert.models.encoder")
    assert imported(tree) == [("kbert", "tasks"), ("kbert", "models", "encoder")]
    assert RANKS["tasks"] > RANKS["data"]


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
