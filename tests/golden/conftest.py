"""The scripts that wrote the files are for the versions that wrote them."""

collect_ignore = [
    "write.py",
    "write_keras_nlp.py",
    "write_model_garden.py",
    "write_transformers4.py",
]
