import pytest
from django.test import TestCase

from django_runlease import LeaseLost, RunLeaseError, claim, lease
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.testing import expire_now, held_by_another, take_over_now


class InsideATestCase(TestCase):
    def test_a_job_is_declined_while_another_process_holds_its_lease(self):
        with held_by_another("billing", holder="web1:42"):
            declined = claim("billing")
            assert not declined
            assert (declined.reason, declined.holder) == ("held", "web1:42")
        assert claim("billing").release()

    def test_an_expired_lease_is_trusted_no_more_and_can_be_claimed(self):
        held = claim("billing")
        expire_now(held)
        with pytest.raises(LeaseLost):
            held.check()
        successor = claim("billing")
        assert successor.generation == held.generation + 1
        assert not held.release()
        assert successor.release()

    def test_after_a_takeover_the_fence_refuses_and_leaving_the_block_raises(self):
        with pytest.raises(LeaseLost), lease("billing") as held:
            take_over_now(held)
            with pytest.raises(LeaseLost), held.fence():
                raise AssertionError("the fence let a stale holder in")
        assert Run.objects.get(token=held.token).outcome == Outcome.LOST
        assert RunLease.objects.get(name="billing").holder == "elsewhere:1"

    def test_what_nobody_holds_cannot_expire(self):
        for stage in (expire_now, take_over_now):
            with pytest.raises(RunLeaseError, match="nobody holds 'billing'"):
                stage("billing")

    def test_a_lease_that_the_test_holds_cannot_be_held_by_another(self):
        held = claim("billing")
        with pytest.raises(RunLeaseError, match="held by"), held_by_another("billing"):
            raise AssertionError("two holders")
        assert held.release()


@pytest.mark.django_db(transaction=True)
def test_the_situations_are_real_outside_a_test_case_too():
    held = claim("billing", heartbeat=False)
    take_over_now("billing")
    assert not held.release()
    assert held.lost_reason == "taken"
