"""What the other tests rely on: whatever a browser complains of fails them."""

import pytest

from .conftest import Complaints
from .tour import LEASES

pytestmark = pytest.mark.usefixtures("nothing")


@pytest.fixture
def complaints(chromium, site):
    """What comes of a page into which something is put that should not be there."""

    def complaints(addition):
        context = chromium.new_context(base_url=site)
        found = Complaints(context)
        page = context.new_page()

        def put(route):
            answer = route.fetch()
            route.fulfill(response=answer, body=answer.text().replace("</main>", addition))

        page.route("**/admin/login/", put)
        page.goto("/admin/login/")
        page.wait_for_load_state("networkidle")
        context.close()
        return " ".join(found.found)

    return complaints


def test_every_page_comes_with_a_policy_that_lets_nothing_inline_pass(page):
    policy = page.goto(LEASES).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    ("addition", "complaint"),
    [
        ("<script>1</script>", "Content Security Policy"),
        ("<p style='color: red'>x</p>", "Content Security Policy"),
        ("<img src='x' onerror='1'>", "Content Security Policy"),
        ("<img src='https://example.com/x.png'>", "Content Security Policy"),
        ("<script src='/static/none.js'></script>", "404"),
        ("</main>", ""),
    ],
)
def test_what_should_not_be_there_is_complained_of(complaints, addition, complaint):
    found = complaints(addition)
    assert complaint in found
    assert bool(found) == bool(complaint)
