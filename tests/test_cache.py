"""The one place where kbert keeps what it can make or fetch again."""

from kbert.cache import cache_folder


def test_the_cache_follows_xdg(monkeypatch):
    monkeypatch.delenv("KBERT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == "/somewhere/kbert"


def test_kbert_s_own_variable_goes_first(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setenv("KBERT_CACHE", "/elsewhere")
    assert cache_folder() == "/elsewhere"
