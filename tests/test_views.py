"""The health endpoint: what ``runlease check`` says, over HTTP, and nothing written."""

import json
import uuid
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import Client, RequestFactory, override_settings
from django.urls import include, path

from django_runlease import claim, views
from django_runlease.models import Alert, AlertKind, Effect, EffectState, Outcome, Run
from django_runlease.testing import expire_now

from .factories import RunFactory, RunLeaseFactory
from .support import ago, spawn_python

urlpatterns = [path("runlease/", include("django_runlease.urls"))]

pytestmark = pytest.mark.urls(__name__)

URL = "/runlease/health/"
HOUR = timedelta(hours=1)


def failing(name="job"):
    RunLeaseFactory(name=name)
    RunFactory.create_batch(3, lease_name=name, outcome=Outcome.FAILED)


@pytest.mark.django_db
def test_it_is_200_while_all_is_well(client: Client):
    RunLeaseFactory()
    response = client.get(URL)
    assert response.status_code == 200
    assert response["Content-Type"] == "application/json"
    assert response["Cache-Control"] == "no-store"
    answer = response.json()
    assert list(answer) == ["status", "checked_at", "alerts"]
    assert (answer["status"], answer["alerts"]) == ("ok", [])


@pytest.mark.django_db
def test_a_warning_is_200_and_told(client: Client):
    RunLeaseFactory(name="job", expired=True)
    response = client.get(URL)
    assert (response.status_code, response.json()["status"]) == (200, "warning")
    assert [alert["kind"] for alert in response.json()["alerts"]] == ["ghost"]


@pytest.mark.django_db
def test_what_is_critical_is_503_unless_it_is_silenced(client: Client):
    failing()
    response = client.get(URL)
    assert (response.status_code, response.json()["status"]) == (503, "critical")
    with pytest.raises(CommandError):
        call_command("runlease", "check")
    assert client.get(URL).json()["alerts"][0]["opened_at"] is not None
    call_command("runlease", "silence", "job", "failing", "--for", "1h")
    response = client.get(URL)
    assert (response.status_code, response.json()["status"]) == (200, "ok")
    assert response.json()["alerts"][0]["silenced"] is True


@pytest.mark.django_db
def test_one_lease_can_be_asked_about_and_an_unknown_one_is_404(client: Client):
    failing("a")
    RunLeaseFactory(name="b c")
    assert client.get(URL, {"lease": "a"}).status_code == 503
    assert client.get(URL, {"lease": "b c"}).status_code == 200
    assert client.get(URL, {"lease": "clearsessions"}).status_code == 200
    for name in ("nobody", "", "\0", "x" * 300):
        response = client.get(URL, {"lease": name})
        assert response.status_code == 404
        assert response["Cache-Control"] == "no-store"


@pytest.mark.django_db
def test_head_is_like_get_without_a_body_and_other_methods_are_405(client: Client):
    failing()
    response = client.head(URL)
    assert (response.status_code, response.content) == (503, b"")
    for method in ("post", "put", "patch", "delete"):
        assert getattr(client, method)(URL).status_code == 405


@pytest.mark.django_db(transaction=True)
def test_a_get_writes_nothing(client: Client):
    failing()
    held = claim("ghost", heartbeat=False)
    expire_now(held)
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        try:
            assert client.get(URL).json()["status"] == "critical"
        finally:
            cursor.execute("SET default_transaction_read_only = off")
    assert not Alert.objects.exists()
    assert Run.objects.get(pk=held.run_id).outcome == Outcome.RUNNING
    held.release()


@pytest.mark.django_db(transaction=True)
def test_no_token_error_or_text_of_a_job_is_told_whatever_is_wrong(client: Client):
    long_ago = ago(36_000)
    secrets = {"progress": {"message": "secret"}, "paused_reason": "secret", "every": HOUR}
    held = RunLeaseFactory(name="held", held=True, claimed_at=long_ago, **secrets)
    stuck = RunLeaseFactory(name="stuck", held=True, renewed_at=long_ago, **secrets)
    gone = RunLeaseFactory(name="gone", expired=True, claimed_at=ago(35_000), **secrets)
    texts = {"reason": "secret", "error": "secret", "output": "secret"}
    RunFactory.create_batch(3, lease_name="gone", outcome="lost", started_at=long_ago, **texts)
    for reason in ("held", "busy", "held"):
        RunFactory(lease_name="held", declined=True, **texts | {"reason": reason})
    Effect.objects.create(
        lease_name="gone",
        kind="secret",
        key='"secret"',
        idempotency_key=uuid.uuid4(),
        state=EffectState.STARTED,
        generation=0,
        result="secret",
        reason="secret",
        started_at=long_ago,
    )
    answer = client.get(URL)
    assert {alert["kind"] for alert in answer.json()["alerts"]} == set(AlertKind.values)
    body = answer.content.decode()
    assert "secret" not in body
    runs = Run.objects.exclude(token=None).values_list("token", flat=True)
    for token in [held.token, stuck.token, gone.token, *runs]:
        assert str(token) not in body
        assert token.hex not in body


@pytest.mark.django_db(transaction=True)
def test_it_works_with_atomic_requests(client: Client, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    failing()
    assert client.get(URL).status_code == 503
    assert not connection.in_atomic_block


@pytest.mark.parametrize("atomic", [False, True])
def test_a_database_that_does_not_answer_is_503_in_json_without_its_words(atomic):
    code = f"""
import json
from django.conf import settings
settings.DATABASES["default"]["ATOMIC_REQUESTS"] = {atomic}
settings.ROOT_URLCONF = "tests.test_views"
settings.ALLOWED_HOSTS = ["testserver"]
from django.test import Client
response = Client().get({URL!r})
print(json.dumps([response.status_code, response["Cache-Control"], response.json()]))
"""
    url = "postgres://secret_user:secret_word@127.0.0.1:1/secret_name"
    process = spawn_python(code, env={"DATABASE_URL": url})
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    status, caching, answer = json.loads(out)
    assert (status, caching) == (503, "no-store")
    assert answer == {"status": "unknown", "error": "the lease database cannot be asked"}


def test_it_is_exempt_from_the_transactions_of_every_database():
    assert views.health._non_atomic_requests == set(connections)


@pytest.mark.django_db
@override_settings(MIDDLEWARE=[])
def test_it_needs_no_middleware_and_no_login():
    assert views.health(RequestFactory().get(URL)).status_code == 200
