"""Pages that are read from the right, in whose language nobody has translated ours."""

import pytest

from ..support import elsewhere
from . import tour

pytestmark = pytest.mark.usefixtures("world")

TURNED = """() => {
    const shown = each => each.getClientRects().length;
    const inline = each => [...each.querySelectorAll("*")].every(
        child => ["inline", "inline-block", "none"].includes(getComputedStyle(child).display));
    const place = (node, offset) => {
        const range = document.createRange();
        range.setStart(node, offset);
        range.setEnd(node, offset + 1);
        return range.getBoundingClientRect();
    };
    const turned = [];
    const texts = "h1, p:not(.runlease-refresh), .runlease-refresh span, li, dt, dd, th, td, label,"
        + " legend, .runlease-line, #changelist-filter a";
    for (const each of document.querySelectorAll(`#content :is(${texts})`)) {
        if (!shown(each) || !inline(each)) continue;
        if (each.closest("#changelist-filter") && each.tagName != "A") continue;
        if (each.closest("#toolbar, #change-history, .paginator")) continue;
        const letters = [];
        const walk = document.createTreeWalker(each, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) {
            const node = walk.currentNode;
            if (!shown(node.parentElement)) continue;
            [...node.data].forEach((letter, n) => {
                if (/[^\\s]/.test(letter)) letters.push(place(node, n));
            });
        }
        if (letters.length < 2) continue;
        const line = letters.filter(letter => Math.abs(letter.bottom - letters[0].bottom) < 8);
        if (line.some((letter, n) => n && letter.left < line[n - 1].left - 1))
            turned.push(each.innerText);
    }
    return [...new Set(turned)];
}"""


# What the admin itself says is not ours.
@pytest.mark.parametrize("name", tour.NAMES)
def test_a_sentence_that_is_not_translated_reads_from_its_left(page, name):
    page.goto(elsewhere(tour.pages)[name])
    assert page.evaluate(TURNED) == []
    page.evaluate("document.documentElement.dir = 'rtl'")
    assert page.evaluate(TURNED) == []
