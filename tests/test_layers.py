"""The package's imports point one way; pyproject.toml says which."""

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from .support import ROOT


def test_no_module_imports_one_that_stands_above_it(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    status = lint_imports(no_cache=True, no_logo=True)
    report = capsys.readouterr().out
    assert status == EXIT_STATUS_SUCCESS, report
    assert "1 kept, 0 broken" in report
