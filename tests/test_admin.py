"""The admin shows holders and history, lets nobody change them, and shows no token."""

import pytest
from django.contrib.auth import get_user_model
from django.urls import reverse

from django_runlease.models import Run, RunLease

from .factories import RunFactory, RunLeaseFactory

pytestmark = pytest.mark.django_db

MODELS = pytest.mark.parametrize(
    ("model", "factory"), [(RunLease, RunLeaseFactory), (Run, RunFactory)]
)


@pytest.fixture
def superuser(client):
    user = get_user_model().objects.create_superuser("ops", password="ops")
    client.force_login(user)
    return client


def url(model, page, *args):
    return reverse(f"admin:runlease_{model._meta.model_name}_{page}", args=args)


def test_the_list_of_leases_says_who_holds_which(superuser):
    RunLeaseFactory(name="billing", held=True)
    RunLeaseFactory(name="reports", expired=True)
    RunLeaseFactory(name="imports")
    RunLeaseFactory(name="exports", held=True, paused=True)
    page = superuser.get(url(RunLease, "changelist")).content.decode()
    for word in ("billing", "held", "elsewhere:4711", "expired", "free", "paused"):
        assert f">{word}<" in page


@MODELS
def test_nobody_adds_changes_or_deletes_a_row_by_hand(superuser, model, factory):
    row = factory()
    assert superuser.get(url(model, "add")).status_code == 403
    assert superuser.post(url(model, "delete", row.pk)).status_code == 403
    assert superuser.post(url(model, "change", row.pk), {}).status_code == 403
    assert model.objects.filter(pk=row.pk).exists()


@MODELS
def test_no_page_shows_a_token(superuser, model, factory):
    row = factory(**({"held": True} if model is RunLease else {}))
    for address in (url(model, "changelist"), url(model, "change", row.pk)):
        response = superuser.get(address)
        assert response.status_code == 200
        assert str(row.token) not in response.content.decode()
