"""The tiny tasks of tests/tasks."""

from tests.tasks.conftest import config, task, tokenizer  # noqa: F401  # fixtures
