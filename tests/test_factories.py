import pytest

from django_runlease.models import State

from .factories import InvoiceFactory, RunFactory, RunLeaseFactory


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("traits", "state"),
    [({}, State.FREE), ({"held": True}, State.HELD), ({"expired": True}, State.EXPIRED)],
)
def test_a_factory_makes_a_lease_in_the_state_that_its_trait_names(traits, state):
    lease = RunLeaseFactory(**traits)
    assert type(lease).objects.with_state().get(pk=lease.pk).state == state


@pytest.mark.django_db
def test_factories_make_rows_that_the_database_accepts():
    assert RunFactory().pk
    assert RunFactory(running=True).finished_at is None
    assert RunFactory(declined=True).generation is None
    assert InvoiceFactory().pk
