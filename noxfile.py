"""The suite on the newer versions of Python and Django: `nox`."""

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False


@nox.session
@nox.parametrize(
    ("python", "django"),
    [
        nox.param("3.12", "6.0", id="3.12-django-6.0"),
        nox.param("3.13", "6.1", id="3.13-django-6.1"),
    ],
)
def tests(session: nox.Session, django: str) -> None:
    """Run the tests, and compare the migrations with the models."""
    session.install("-e", ".[test]", f"django=={django}.*")
    session.run("python", "-m", "pytest", *session.posargs)
    for auto_field in ("BigAutoField", "AutoField"):
        session.run(
            "python",
            "manage.py",
            "makemigrations",
            "--check",
            env={"DEFAULT_AUTO_FIELD": f"django.db.models.{auto_field}"},
        )


@nox.session(default=False)
def browser(session: nox.Session) -> None:
    """Run the tests that drive a real browser, for which a Chromium has to be there."""
    session.install("-e", ".[browser]")
    session.run("python", "-m", "pytest", "-n", "2", "tests/browser", *session.posargs)
